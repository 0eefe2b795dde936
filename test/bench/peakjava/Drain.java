import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;

/** Reads a topic with a group of its own, as kafka-console-consumer does, which is not among the broker's jars: defaults, one poll after another. */
public class Drain {
    public static void main(String[] args) {
        Properties p = new Properties();
        p.put("bootstrap.servers", args[0]);
        p.put("group.id", args[2]);
        p.put("auto.offset.reset", "earliest");
        String bytes = "org.apache.kafka.common.serialization.ByteArrayDeserializer";
        p.put("key.deserializer", bytes);
        p.put("value.deserializer", bytes);
        try (KafkaConsumer<byte[], byte[]> c = new KafkaConsumer<>(p)) {
            c.subscribe(List.of(args[1]));
            for (long left = Long.parseLong(args[3]); left > 0; ) {
                left -= c.poll(Duration.ofSeconds(1)).count();
            }
        }
    }
}
