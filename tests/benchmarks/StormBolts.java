import java.lang.management.ManagementFactory;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.storm.Config;
import org.apache.storm.LocalCluster;
import org.apache.storm.spout.SpoutOutputCollector;
import org.apache.storm.task.OutputCollector;
import org.apache.storm.task.TopologyContext;
import org.apache.storm.topology.OutputFieldsDeclarer;
import org.apache.storm.topology.TopologyBuilder;
import org.apache.storm.topology.base.BaseRichBolt;
import org.apache.storm.topology.base.BaseRichSpout;
import org.apache.storm.tuple.Fields;
import org.apache.storm.tuple.Tuple;
import org.apache.storm.tuple.Values;

/**
 * Sentences of ten words, split, counted, anchored and acked, by Storm's own bolts in one process; arguments: tasks of each
 * component, sentences pending for each spout, seconds to warm up, seconds to measure.
 */
public class StormBolts {
    static final int WORDS = 10, VOCABULARY = 5_000, SENTENCES = 2_000;
    static final AtomicLong acked = new AtomicLong();

    /** Sentences without end. */
    public static class Sentences extends BaseRichSpout {
        String[] sentences = new String[SENTENCES];
        SpoutOutputCollector collector;
        long number;

        @Override
        public void open(Map<String, Object> conf, TopologyContext context, SpoutOutputCollector collector) {
            this.collector = collector;
            Random random = new Random(context.getThisTaskId());
            for (int at = 0; at < SENTENCES; at++) {
                StringBuilder text = new StringBuilder();
                for (int word = 0; word < WORDS; word++) {
                    text.append(word == 0 ? "" : " ").append("word").append(random.nextInt(VOCABULARY));
                }
                sentences[at] = text.toString();
            }
        }

        @Override
        public void nextTuple() {
            collector.emit(new Values(sentences[(int) (number % SENTENCES)]), number++);
        }

        @Override
        public void ack(Object id) {
            acked.incrementAndGet();
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("sentence"));
        }
    }

    abstract static class Emitting extends BaseRichBolt {
        OutputCollector collector;

        @Override
        public void prepare(Map<String, Object> conf, TopologyContext context, OutputCollector collector) {
            this.collector = collector;
        }
    }

    /** Each word, anchored to its sentence. */
    public static class Split extends Emitting {
        @Override
        public void execute(Tuple tuple) {
            for (String word : tuple.getString(0).split(" ")) {
                collector.emit(tuple, new Values(word));
            }
            collector.ack(tuple);
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("word"));
        }
    }

    /** Counts in memory. */
    public static class CountWords extends Emitting {
        Map<String, Integer> counts = new HashMap<>();

        @Override
        public void execute(Tuple tuple) {
            counts.merge(tuple.getString(0), 1, Integer::sum);
            collector.ack(tuple);
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
        }
    }

    public static void main(String[] arguments) throws Exception {
        int tasks = Integer.parseInt(arguments[0]), pending = Integer.parseInt(arguments[1]);
        double warm = Double.parseDouble(arguments[2]), seconds = Double.parseDouble(arguments[3]);
        TopologyBuilder builder = new TopologyBuilder();
        builder.setSpout("sentences", new Sentences(), tasks);
        builder.setBolt("split", new Split(), tasks).shuffleGrouping("sentences");
        builder.setBolt("count", new CountWords(), tasks).fieldsGrouping("split", new Fields("word"));
        Config config = new Config();
        config.setMaxSpoutPending(pending);
        config.setNumAckers(tasks);
        new LocalCluster().submitTopology("words", config, builder.createTopology());
        while (acked.get() == 0) {
            Thread.sleep(10);
        }
        Thread.sleep((long) (warm * 1000));
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long before = acked.get(), began = System.nanoTime(), used = system.getProcessCpuTime();
        Thread.sleep((long) (seconds * 1000));
        double counted = acked.get() - before;
        double took = (System.nanoTime() - began) / 1e9, processor = (system.getProcessCpuTime() - used) / 1e9;
        System.out.printf(
            "{\"sentences_per_s\": %.0f, \"sentences_per_cpu_s\": %.0f}%n", counted / took, counted / processor);
        System.exit(0);
    }
}
