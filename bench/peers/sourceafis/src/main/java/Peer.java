import com.machinezoo.sourceafis.FingerprintCompatibility;
import com.machinezoo.sourceafis.FingerprintImage;
import com.machinezoo.sourceafis.FingerprintImageOptions;
import com.machinezoo.sourceafis.FingerprintMatcher;
import com.machinezoo.sourceafis.FingerprintTemplate;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.stream.Stream;

/**
 * Scores every pair of impressions below a folder with SourceAFIS, from ISO templates or from images, in the
 * protocol of {@code millpond bench match}, and prints its figures.
 */
public final class Peer {
    private static final double FALSE_MATCH_RATE = 0.001;

    private record Impression(String database, String finger, FingerprintTemplate template) {}

    private record Scores(List<Double> genuine, List<Double> impostor) {
        Scores() {
            this(new ArrayList<>(), new ArrayList<>());
        }
    }

    private Peer() {}

    public static void main(String[] arguments) throws IOException {
        if (arguments.length < 1) {
            System.err.println("usage: Peer DIR [iso|tif]...");
            System.exit(2);
        }
        String[] kinds = arguments.length == 1 ? new String[] {"iso", "tif"}
                : Arrays.copyOfRange(arguments, 1, arguments.length);
        for (String kind : kinds) {
            measure(Path.of(arguments[0]), kind);
        }
    }

    private static void measure(Path root, String kind) throws IOException {
        List<Impression> impressions = read(root, kind);
        if (impressions.isEmpty()) {
            System.err.printf("no FINGER_IMPRESSION.%s below %s%n", kind, root);
            System.exit(2);
        }
        // Run once unmeasured: the virtual machine compiles while it runs.
        compare(impressions, null, null);
        Scores pooled = new Scores();
        long before = cpuNanos();
        long pairs = compare(impressions, null, pooled);
        double microseconds = (cpuNanos() - before) / 1e3 / pairs;
        System.out.printf(Locale.ROOT, "%s: %d templates, %.0f us a match (processor time of the thread)%n",
                kind, impressions.size(), microseconds);
        report("pooled", pooled);
        for (String database : impressions.stream().map(Impression::database).distinct().sorted().toList()) {
            Scores own = new Scores();
            compare(impressions, database, own);
            report(database, own);
        }
    }

    private static List<Impression> read(Path root, String kind) throws IOException {
        List<Path> files;
        try (Stream<Path> walk = Files.walk(root)) {
            files = walk.filter(path -> path.toString().endsWith("." + kind)).sorted().toList();
        }
        List<Impression> impressions = new ArrayList<>();
        for (Path file : files) {
            byte[] bytes = Files.readAllBytes(file);
            FingerprintTemplate template = kind.equals("iso")
                    ? FingerprintCompatibility.importTemplate(bytes)
                    : new FingerprintTemplate(new FingerprintImage(bytes, new FingerprintImageOptions().dpi(500)));
            String name = file.getFileName().toString();
            String database = file.getParent().getFileName().toString();
            impressions.add(new Impression(database, name.substring(0, name.indexOf('_')), template));
        }
        return impressions;
    }

    /** Every unordered pair once, the first of the two being the probe. */
    private static long compare(List<Impression> all, String database, Scores scores) {
        long pairs = 0;
        for (int first = 0; first < all.size(); first++) {
            Impression probe = all.get(first);
            if (database != null && !probe.database.equals(database)) {
                continue;
            }
            FingerprintMatcher matcher = new FingerprintMatcher(probe.template);
            for (Impression candidate : all.subList(first + 1, all.size())) {
                if (database != null && !candidate.database.equals(database)) {
                    continue;
                }
                double score = matcher.match(candidate.template);
                pairs++;
                if (scores != null) {
                    boolean same = probe.database.equals(candidate.database) && probe.finger.equals(candidate.finger);
                    (same ? scores.genuine : scores.impostor).add(score);
                }
            }
        }
        return pairs;
    }

    private static void report(String name, Scores scores) {
        double[] genuine = scores.genuine.stream().mapToDouble(Double::doubleValue).sorted().toArray();
        double[] impostor = scores.impostor.stream().mapToDouble(Double::doubleValue).sorted().toArray();
        int allowed = (int) Math.floor(FALSE_MATCH_RATE * impostor.length);
        // Scores above this one are accepted: at most `allowed` impostors are.
        double threshold = impostor[impostor.length - 1 - allowed];
        double missed = 100.0 * Arrays.stream(genuine).filter(score -> score <= threshold).count() / genuine.length;
        System.out.printf(Locale.ROOT, "  %-8s %d genuine, %d impostor: FNMR %.2f %% at FMR 0.1 %% (above %.2f), EER %.2f %%%n",
                name, genuine.length, impostor.length, missed, threshold, equalErrorRate(genuine, impostor));
    }

    private static double equalErrorRate(double[] genuine, double[] impostor) {
        double best = Double.MAX_VALUE;
        double rate = 100;
        for (double threshold : genuine) {
            double missed = (double) Arrays.stream(genuine).filter(score -> score < threshold).count() / genuine.length;
            double wrong = (double) Arrays.stream(impostor).filter(score -> score >= threshold).count() / impostor.length;
            if (Math.abs(missed - wrong) < best) {
                best = Math.abs(missed - wrong);
                rate = 50 * (missed + wrong);
            }
        }
        return rate;
    }

    private static long cpuNanos() {
        return ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
    }
}
