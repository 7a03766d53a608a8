import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import org.apache.storm.Config;
import org.apache.storm.LocalCluster;
import org.apache.storm.redis.common.config.JedisPoolConfig;
import org.apache.storm.redis.trident.state.Options;
import org.apache.storm.redis.trident.state.RedisMapState;
import org.apache.storm.task.TopologyContext;
import org.apache.storm.trident.TridentTopology;
import org.apache.storm.trident.operation.BaseFunction;
import org.apache.storm.trident.operation.TridentCollector;
import org.apache.storm.trident.operation.builtin.Count;
import org.apache.storm.trident.spout.IBatchSpout;
import org.apache.storm.trident.state.OpaqueValue;
import org.apache.storm.trident.state.StateFactory;
import org.apache.storm.trident.testing.MemoryMapState;
import org.apache.storm.trident.tuple.TridentTuple;
import org.apache.storm.tuple.Fields;
import org.apache.storm.tuple.Values;

/**
 * The persistent word count of Storm's Trident, in one process; arguments: sentences a batch, batches, tasks, words to draw from,
 * port of a Redis (0: the state is in memory), batches in flight, microseconds that an idle spout or bolt waits (-1: as Storm
 * waits by default), tuples that are passed on together.
 */
public class StormWords {
    static final int WORDS = 10;
    static volatile long halfway, end;
    static final CountDownLatch done = new CountDownLatch(1);

    /** Batches of sentences that are made before the run; notes when the middle and the last one are committed. */
    static class Sentences implements IBatchSpout {
        final int size, batches, vocabulary;
        transient List<Values> sentences;
        transient int acked;

        Sentences(int size, int batches, int vocabulary) {
            this.size = size;
            this.batches = batches;
            this.vocabulary = vocabulary;
        }

        @Override
        public void open(Map<String, Object> conf, TopologyContext context) {
            Random random = new Random(7);
            sentences = new ArrayList<>();
            for (int at = 0; at < size; at++) {
                StringBuilder text = new StringBuilder();
                for (int word = 0; word < WORDS; word++) {
                    text.append(word == 0 ? "" : " ").append("word").append(random.nextInt(vocabulary));
                }
                sentences.add(new Values(text.toString()));
            }
        }

        @Override
        public void emitBatch(long batch, TridentCollector collector) {
            if (batch <= batches) {
                for (Values sentence : sentences) {
                    collector.emit(sentence);
                }
            }
        }

        @Override
        public void ack(long batch) {
            acked++;
            if (acked == batches / 2) {
                halfway = System.nanoTime();
            } else if (acked == batches) {
                end = System.nanoTime();
                done.countDown();
            }
        }

        @Override
        public void close() {
        }

        @Override
        public Map<String, Object> getComponentConfiguration() {
            return null;
        }

        @Override
        public Fields getOutputFields() {
            return new Fields("line");
        }
    }

    /** Splits at spaces. */
    static class Split extends BaseFunction {
        @Override
        public void execute(TridentTuple tuple, TridentCollector collector) {
            for (String word : tuple.getString(0).split(" ")) {
                collector.emit(new Values(word));
            }
        }
    }

    static Options<OpaqueValue> cached(int keys) {
        Options<OpaqueValue> options = new Options<>();
        options.localCacheSize = keys;
        return options;
    }

    static void waitFor(Config config, int micros) {
        if (micros >= 0) {
            String park = "org.apache.storm.policy.WaitStrategyPark";
            config.put(Config.TOPOLOGY_SPOUT_WAIT_STRATEGY, park);
            config.put(Config.TOPOLOGY_SPOUT_WAIT_PARK_MICROSEC, micros);
            config.put(Config.TOPOLOGY_BOLT_WAIT_STRATEGY, park);
            config.put(Config.TOPOLOGY_BOLT_WAIT_PARK_MICROSEC, micros);
            config.put(Config.TOPOLOGY_BACKPRESSURE_WAIT_STRATEGY, park);
            config.put(Config.TOPOLOGY_BACKPRESSURE_WAIT_PARK_MICROSEC, micros);
        }
    }

    public static void main(String[] arguments) throws Exception {
        int size = Integer.parseInt(arguments[0]), batches = Integer.parseInt(arguments[1]);
        int tasks = Integer.parseInt(arguments[2]), vocabulary = Integer.parseInt(arguments[3]);
        int redis = Integer.parseInt(arguments[4]);
        StateFactory state = redis == 0
            ? new MemoryMapState.Factory()
            : RedisMapState.opaque(
                new JedisPoolConfig.Builder().setHost("127.0.0.1").setPort(redis).build(), cached(20_000));
        TridentTopology topology = new TridentTopology();
        topology.newStream("lines", new Sentences(size, batches, vocabulary))
            .each(new Fields("line"), new Split(), new Fields("word"))
            .groupBy(new Fields("word"))
            .persistentAggregate(state, new Count(), new Fields("count"))
            .parallelismHint(tasks);
        Config config = new Config();
        config.setMaxSpoutPending(Integer.parseInt(arguments[5]));
        waitFor(config, Integer.parseInt(arguments[6]));
        config.put(Config.TOPOLOGY_PRODUCER_BATCH_SIZE, Integer.parseInt(arguments[7]));
        config.put(Config.TOPOLOGY_TRIDENT_BATCH_EMIT_INTERVAL_MILLIS, 1); // by default a batch begins each 500 ms
        config.setMessageTimeoutSecs(600);
        config.setNumAckers(1);
        LocalCluster cluster = new LocalCluster();
        cluster.submitTopology("words", config, topology.build());
        done.await();
        int counted = batches - batches / 2;
        double seconds = (end - halfway) / 1e9;
        System.out.printf("{\"warm_words_per_s\": %.0f}%n", (double) counted * size * WORDS / seconds);
        System.exit(0);
    }
}
