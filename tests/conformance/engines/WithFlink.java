import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.types.Row;

/** Flink does what its page shows, writes and reads back: WithFlink.java URL PAGE. */
public class WithFlink {
  public static void main(String[] arguments) throws Exception {
    TableEnvironment flink = TableEnvironment.create(EnvironmentSettings.inBatchMode());
    // Hadoop's library looks for its settings as Java ends, when the classes of the last query are gone.
    flink.getConfig().set("classloader.check-leaked-classloader", "false");
    String page = Files.readString(Path.of(arguments[1])).replace("http://127.0.0.1:7072", arguments[0]);
    for (String statement : page.split("```sql\n")[1].split("```")[0].split(";\n")) {
      flink.executeSql(statement).print();
    }
    for (String statement :
        List.of(
            "DROP TABLE lake.`default`.kinds",
            "CREATE DATABASE lake.flink",
            "CREATE TABLE lake.flink.t (id BIGINT, kind STRING) PARTITIONED BY (kind)",
            "INSERT INTO lake.flink.t VALUES (1, 'a'), (2, 'b')",
            "INSERT INTO lake.flink.t VALUES (3, 'c')",
            "INSERT OVERWRITE lake.flink.t PARTITION (kind='a') SELECT 4",
            "ALTER TABLE lake.flink.t SET ('write.format.default'='parquet')")) {
      flink.executeSql(statement).await();
    }
    List<Long> found = new ArrayList<>();
    try (var rows = flink.executeSql("SELECT id FROM lake.flink.t ORDER BY id").collect()) {
      rows.forEachRemaining((Row row) -> found.add((Long) row.getField(0)));
    }
    if (!found.equals(List.of(2L, 3L, 4L))) {
      throw new AssertionError("read back " + found);
    }
  }
}
