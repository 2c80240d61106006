//! Other engines with an index on disk: a script in Python, which limits the memory of each engine.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use base::{Error, Result};
use serde::{Deserialize, Serialize};

use super::VectorsArgs;
use super::collection::{CollectionPlan, RowMaker, WARM_UP};
use super::peers::{PeerScriptRun, Peers};
use crate::peer_process::PeerEnd;
use loadgen::println;
use loadgen::report::{TextTable, ms};
use loadgen::run_folder::RunFolder;

/// Number of rows that are generated at once.
const BATCH: usize = 1000;

/// Figures of one engine, as the script writes them.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(super) struct DiskPeerFigures {
    version: Option<String>,
    /// Index that was built, with its settings.
    index: String,
    /// Fastest search setting with the wanted recall, or the one with the best recall.
    setting: String,
    recall: f64,
    /// Median latency of a lone query that was never asked before, by search threads.
    p50_ms: BTreeMap<usize, f64>,
    /// 95th percentile of the same.
    p95_ms: BTreeMap<usize, f64>,
    /// Median latency of the same queries when they are repeated.
    repeated_p50_ms: BTreeMap<usize, f64>,
    build_s: f64,
    /// Time from opening the index to its first answer, after its process was killed.
    ready_s: f64,
    /// Resident memory of the process that searches.
    rss_mb: f64,
    /// Largest resident memory of the process that builds.
    build_rss_mb: f64,
    disk_mb: f64,
    memory_limit_mb: f64,
    /// Means that limits the memory: `cgroup2`, `cgroup1` or `rlimit_data`.
    limited_by: String,
    /// Measured settings.
    points: Vec<DiskPeerPoint>,
}

/// Measurement of one search setting, from which the setting is chosen.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
struct DiskPeerPoint {
    setting: String,
    recall: f64,
    p50_ms: f64,
    p95_ms: f64,
}

/// Outcomes of all engines.
#[derive(Debug, Default, Serialize)]
pub(super) struct DiskPeerOutcomes {
    peers: BTreeMap<String, DiskPeerFigures>,
    /// Messages of engines that failed.
    peers_failed: BTreeMap<String, String>,
    /// Reason why no other engines were run.
    peers_absent: Option<String>,
}

impl DiskPeerOutcomes {
    /// Measures the engines on the rows, queries and threads of the collection. Files are written
    /// to `folder`, which is removed at the end. A failure becomes part of the outcomes. Calls
    /// `after_engine` with the outcomes so far after each engine.
    pub(super) fn measure(
        peers: &Peers,
        args: &VectorsArgs,
        plan: &CollectionPlan<'_>,
        truth: &[Vec<u64>],
        folder: &Path,
        after_engine: &mut dyn FnMut(&DiskPeerOutcomes),
    ) -> DiskPeerOutcomes {
        let mut outcomes =
            DiskPeerOutcomes { peers_absent: peers.absent.clone(), ..DiskPeerOutcomes::default() };
        if peers.engines.is_empty() {
            return outcomes;
        }
        println!(
            "files of the other engines are in {} until the end; remove it if this run is killed",
            folder.display()
        );
        let removed = RunFolder::new(folder.to_owned());
        match write_data(plan, truth, folder) {
            Ok(()) => {
                for engine in &peers.engines {
                    println!("{engine}");
                    outcomes.add(engine, run(peers, engine, args, plan, folder));
                    after_engine(&outcomes);
                }
            }
            Err(error) => outcomes.peers_absent = Some(error.message().to_owned()),
        }
        drop(removed);
        if folder.exists() {
            println!("{} was not removed; remove it", folder.display());
        }
        outcomes
    }

    fn add(&mut self, engine: &str, outcome: Result<DiskPeerFigures>) {
        match outcome {
            Ok(figures) => {
                self.peers.insert(engine.to_owned(), figures);
            }
            Err(error) => {
                self.peers_failed.insert(engine.to_owned(), error.message().to_owned());
            }
        }
    }

    /// Prints the outcomes for people.
    pub(super) fn print(&self) {
        if !self.peers.is_empty() {
            println!("\n{}", self.table());
        }
        for (engine, why) in &self.peers_failed {
            println!("{engine} failed: {why}");
        }
        if let Some(why) = &self.peers_absent {
            println!("{why}");
        }
    }

    fn table(&self) -> TextTable {
        let mut table = TextTable::new(&[
            "engine",
            "recall",
            "threads",
            "p50 ms",
            "p95 ms",
            "repeated ms",
            "resident MB",
            "disk MB",
            "build s",
            "ready s",
            "limited by",
        ]);
        for (engine, figures) in &self.peers {
            for (threads, p50) in &figures.p50_ms {
                table.row([
                    engine.clone(),
                    format!("{:.4}", figures.recall),
                    threads.to_string(),
                    ms(*p50),
                    figures.p95_ms.get(threads).map_or("-".into(), |p95| ms(*p95)),
                    figures.repeated_p50_ms.get(threads).map_or("-".into(), |p50| ms(*p50)),
                    format!("{:.0}", figures.rss_mb),
                    format!("{:.0}", figures.disk_mb),
                    format!("{:.0}", figures.build_s),
                    format!("{:.2}", figures.ready_s),
                    figures.limited_by.clone(),
                ]);
            }
        }
        table
    }
}

/// Returns the line for people that announces the engines before the collection is filled, because
/// their indexes can take hours.
pub(super) fn announcement(peers: &Peers, args: &VectorsArgs) -> String {
    if peers.engines.is_empty() {
        return peers.line();
    }
    format!(
        "then {}, each with at most {:?} to build its index (--peers-build-limit); --no-peers leaves them out",
        peers.engines.join(", "),
        args.peers_build_limit
    )
}

/// Builds the index of one engine and measures it.
fn run(
    peers: &Peers,
    engine: &str,
    args: &VectorsArgs,
    plan: &CollectionPlan<'_>,
    folder: &Path,
) -> Result<DiskPeerFigures> {
    let threads: Vec<String> = plan.threads.iter().map(ToString::to_string).collect();
    // The script ends its processes and removes their control groups.
    let run = PeerScriptRun {
        engine,
        end: PeerEnd::Itself,
        build_limit: args.peers_build_limit,
        say: &|_| {},
    };
    peers.measure(&run, |command| {
        command.arg("--data").arg(folder).arg("--work").arg(folder);
        command.args(["--memory", &plan.memory_bytes.to_string()]);
        command.args(["--threads", &plan.build_threads.to_string()]);
        command.args(["--search-threads", &threads.join(",")]);
        command.args(["--warm-up", &WARM_UP.to_string()]);
        if let Some(group) = &args.peers_group {
            command.arg("--group").arg(group);
        }
    })
}

/// Writes base.fbin, query.fbin and truth.ibin. The rows are generated again in batches.
fn write_data(plan: &CollectionPlan<'_>, truth: &[Vec<u64>], folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|e| Error::io(folder, &e))?;
    let maker = RowMaker::new(plan.dims);
    let queries = maker.queries();
    let count = (queries.len() / plan.dims) as u64;
    let mut file = RowsFile::create(folder.join("query.fbin"), count, plan.dims)?;
    file.write(queries.iter().map(|value| value.to_le_bytes()))?;
    file.finish()?;
    let hits = truth.first().map_or(0, Vec::len);
    let mut file = RowsFile::create(folder.join("truth.ibin"), truth.len() as u64, hits)?;
    for row in truth.iter().flatten() {
        file.write([word(*row)?.to_le_bytes()])?;
    }
    file.finish()?;
    let mut file = RowsFile::create(folder.join("base.fbin"), plan.rows, plan.dims)?;
    let mut vectors = Vec::new();
    for first in (0..plan.rows).step_by(BATCH) {
        vectors.clear();
        let end = plan.rows.min(first + BATCH as u64);
        (first..end).for_each(|row| maker.push(row, &mut vectors));
        file.write(vectors.iter().map(|value| value.to_le_bytes()))?;
    }
    file.finish()
}

fn word(number: u64) -> Result<u32> {
    u32::try_from(number).map_err(|_| Error::invalid(format!("{number} needs more than 32 bits")))
}

/// File of rows of 32-bit values: the numbers of rows and of values per row, then the values.
struct RowsFile {
    path: PathBuf,
    file: BufWriter<File>,
}

impl RowsFile {
    fn create(path: PathBuf, rows: u64, width: usize) -> Result<RowsFile> {
        let file = File::create(&path).map_err(|e| Error::io(&path, &e))?;
        let mut created = RowsFile { path, file: BufWriter::new(file) };
        created.write([word(rows)?.to_le_bytes(), word(width as u64)?.to_le_bytes()])?;
        Ok(created)
    }

    fn write(&mut self, values: impl IntoIterator<Item = [u8; 4]>) -> Result<()> {
        for value in values {
            self.file.write_all(&value).map_err(|e| Error::io(&self.path, &e))?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        self.file.flush().map_err(|e| Error::io(&self.path, &e))
    }
}

#[cfg(test)]
mod tests {
    use search::codes::CodesPlace;

    use super::*;

    /// A stand-in for the script, run by /bin/sh. `good` writes figures with its arguments as the
    /// description of the index, `bad` fails.
    const SCRIPT: &str = r#"
        [ "$1" = --list ] && { echo disk-good; echo disk-bad; exit; }
        [ "$2" = disk-bad ] && { echo "some text" >&2; echo "build: not finished after 7 s" >&2; exit 1; }
        out=$4
        shift 4
        cat > "$out" <<END
        {"engine": "disk-good", "version": "1", "index": "$*", "setting": "probes 2", "recall": 0.96,
         "p50_ms": {"1": 1.5, "2": 1.0}, "p95_ms": {"1": 3.0, "2": 2.0},
         "repeated_p50_ms": {"1": 0.5, "2": 0.4}, "build_s": 9, "ready_s": 0.5,
         "rss_mb": 70, "build_rss_mb": 90, "disk_mb": 12, "memory_limit_mb": 100,
         "limited_by": "rlimit_data",
         "points": [{"setting": "probes 2", "choice": [0, 2], "recall": 0.96, "p50_ms": 1, "p95_ms": 2}]}
END
        "#;

    fn plan(directory: &Path) -> CollectionPlan<'_> {
        CollectionPlan {
            directory,
            rows: 2500,
            dims: 3,
            memory_bytes: 100_000_000,
            codes: CodesPlace::Auto,
            build_threads: 2,
            threads: vec![1, 2],
            merge_segments: 4,
            keep: false,
        }
    }

    fn words(path: &Path) -> Vec<u32> {
        let bytes = std::fs::read(path).unwrap();
        bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }

    #[test]
    fn the_files_hold_the_rows_of_the_collection() {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan(folder.path());
        let truth: Vec<Vec<u64>> = (0..1000).map(|query| vec![query, 2499]).collect();
        write_data(&plan, &truth, folder.path()).unwrap();
        let base = words(&folder.path().join("base.fbin"));
        assert_eq!((&base[..2], base.len()), (&[2500, 3][..], 2 + 2500 * 3));
        let mut last = Vec::new();
        RowMaker::new(3).push(2499, &mut last);
        let last: Vec<u32> = last.iter().map(|value| value.to_bits()).collect();
        assert_eq!(base[base.len() - 3..], last);
        let query = words(&folder.path().join("query.fbin"));
        assert_eq!((&query[..2], query.len()), (&[1000, 3][..], 2 + 1000 * 3));
        let truth = words(&folder.path().join("truth.ibin"));
        assert_eq!((&truth[..6], truth.len()), (&[1000, 2, 0, 2499, 1, 2499][..], 2 + 1000 * 2));
        assert!(write_data(&plan, &[vec![u64::MAX]], folder.path()).is_err());
    }

    #[test]
    fn an_engine_that_fails_is_reported_with_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        std::fs::write(&script, SCRIPT).unwrap();
        let script = script.display().to_string();
        let args = ["--memory", "100MB", "--peers-python", "/bin/sh", "--peers-script"];
        let args = args.into_iter().chain([&*script, "--peers-build-limit", "7s"]);
        let args = crate::arguments::parse(args).unwrap();
        let peers = Peers::find(&args).unwrap();
        let announced = announcement(&peers, &args);
        assert!(
            announced.starts_with("then disk-good, disk-bad, each with at most 7s to"),
            "{announced}"
        );
        assert!(announced.contains("--no-peers"), "{announced}");
        let data = folder.path().join("data");
        let plan = plan(folder.path());
        let truth = vec![vec![1; 10]; 1000];
        let mut stages = Vec::new();
        let outcomes =
            DiskPeerOutcomes::measure(&peers, &args, &plan, &truth, &data, &mut |outcomes| {
                stages.push((outcomes.peers.len(), outcomes.peers_failed.len()));
            });
        assert_eq!(stages, [(1, 0), (1, 1)]);
        let good = &outcomes.peers["disk-good"];
        assert_eq!((good.recall, good.p50_ms[&2], good.points.len()), (0.96, 1.0, 1));
        let data_text = data.display();
        let expected = format!(
            "--data {data_text} --work {data_text} --memory 100000000 --threads 2 \
             --search-threads 1,2 --warm-up 100 --build-limit 7 --end-with-parent"
        );
        assert_eq!(good.index, expected);
        let why = &outcomes.peers_failed["disk-bad"];
        assert!(why.ends_with("disk-bad: build: not finished after 7 s"), "{why}");
        assert_eq!((&outcomes.peers_absent, data.exists()), (&None, false));
        let json = serde_json::to_value(&outcomes).unwrap();
        assert_eq!(json["peers"]["disk-good"]["p95_ms"]["1"], 3.0);
        assert!(outcomes.table().to_string().contains("rlimit_data"));
    }

    #[test]
    fn options_without_effect_are_refused() {
        for wrong in [
            &["--memory", "1GB", "--index", "flat"][..],
            &["--memory", "1GB", "--core", "1"],
            &["--memory", "1GB", "--seconds", "1"],
            &["--data", "x", "--rows", "5000"],
            &["--data", "x", "--dims", "8"],
        ] {
            let words = wrong.iter().copied();
            assert!(crate::arguments::parse::<VectorsArgs>(words).is_err(), "{wrong:?}");
        }
        let args = ["--peers-python", "/bin/sh", "--engine", "faiss-hnsw"];
        let refused = Peers::find(&crate::arguments::parse(args).unwrap()).unwrap_err();
        assert!(refused.message().contains("needs --data or --memory"), "{}", refused.message());
    }

    #[test]
    fn no_peers_measures_only_millpond() {
        let args = ["--memory", "100MB", "--peers-python", "/bin/sh", "--no-peers"];
        let args = crate::arguments::parse(args).unwrap();
        let peers = Peers::find(&args).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let plan = plan(folder.path());
        let outcomes =
            DiskPeerOutcomes::measure(&peers, &args, &plan, &[], &data, &mut |_| panic!("ran"));
        assert!(outcomes.peers.is_empty() && !data.exists());
        assert_eq!(announcement(&peers, &args), "no other engines: --no-peers");
        assert_eq!(outcomes.peers_absent.as_deref(), Some("no other engines: --no-peers"));
    }
}
