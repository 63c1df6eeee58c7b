"""What the tests of Spark share."""

from support.spark.spark_service import service as service
from support.spark.spark_service import spark as spark
