"""Operations of distop as tasks of Airflow."""

from distop_airflow.hook import DistopHook
from distop_airflow.operator import DistopLink, DistopOperator
from distop_airflow.sensor import DistopWatermarkSensor

__all__ = ["DistopHook", "DistopLink", "DistopOperator", "DistopWatermarkSensor"]
