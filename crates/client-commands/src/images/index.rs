//! `millpond images index`: adds folders of images to a collection. Images that the collection has
//! are not sent again.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use command_line::exit::{CommandError, CommandResult, ExitStatus, print, print_note};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;

use super::ImagesServerArgs;
use super::upload::{UploadOutcome, UploadTarget};
use super::walk::{FileFailure, WalkResult, WalkedFile, id_of, walk};
use crate::client::ServerClient;

/// Maximum ids in one request to `/missing`, as the server allows.
const MISSING_IDS_MAX: usize = 1000;
/// Maximum number of connections.
const CONNECTIONS_MAX: usize = 64;
/// Maximum length of a collection's name in bytes.
const COLLECTION_BYTES_MAX: usize = 200;
/// Maximum number of failures printed; the rest is counted.
const FAILURES_SHOWN_MAX: usize = 50;
/// Minimum number of missing images that are sent as background work.
const BULK_MIN: usize = 16;
/// Interval between two redraws.
const DRAW_INTERVAL: Duration = Duration::from_millis(200);

/// `millpond images index DIR...`.
#[derive(Args, Debug)]
#[command(after_help = "\
Each image is named by its path below DIR and identified by its content. Images that the collection has are not sent \
again, so the same call updates the collection, and continues after Ctrl-C, a crash or a lost network. Images that \
the server has acknowledged are on its disk. Hidden files are skipped.

The server works on many images in the background, so that searches stay fast; --foreground uses the whole machine. \
Exit status 1 means that some images failed: they are listed with the reason.")]
pub(super) struct IndexArgs {
    /// Folders of images (jpg, png, webp, tiff, bmp, wsq, an2) or templates, or single files
    #[arg(value_name = "DIR", required = true)]
    sources: Vec<PathBuf>,
    /// Collection to add them to
    #[arg(long, value_name = "NAME", value_parser = collection_name)]
    collection: String,
    /// Content of the images, for a new collection [default: photo]
    #[arg(long, value_enum)]
    kind: Option<ImageKindName>,
    /// Served model of a new collection's embeddings [default: the server's; fingerprints: none]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// JSON object stored with each image, for filters
    #[arg(long, value_name = "JSON", value_parser = json_object)]
    payload: Option<String>,
    /// Connections to the server; each sends one image at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=CONNECTIONS_MAX as i64))]
    connections: u16,
    /// Use the whole machine, even if searches have to wait
    #[arg(long)]
    foreground: bool,
    #[command(flatten)]
    server: ImagesServerArgs,
}

/// Content of images. It selects the extractor of keypoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ImageKindName {
    /// Photographs, drawings, scans
    Photo,
    /// Fingerprints
    Fingerprint,
}

impl ImageKindName {
    fn name(self) -> &'static str {
        match self {
            ImageKindName::Photo => "photo",
            ImageKindName::Fingerprint => "fingerprint",
        }
    }
}

/// Checks that an argument is a JSON object, and returns it as it is.
fn json_object(text: &str) -> Result<String, String> {
    match serde_json::from_str(text) {
        Ok(serde_json::Value::Object(_)) => Ok(text.to_owned()),
        Ok(_) => Err("this is JSON, but not an object, as in {\"album\": \"holidays\"}".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// Checks a collection's name by the server's rules, which leave room for a version number.
fn collection_name(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if (1..=COLLECTION_BYTES_MAX).contains(&text.len())
        && !text.starts_with('.')
        && text.chars().all(allowed)
    {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "a collection's name has 1 to {COLLECTION_BYTES_MAX} of A-Z, a-z, 0-9, \".\", \"_\" and \"-\", and does not \
             begin with a dot"
        ))
    }
}

/// Counts of a whole call.
#[derive(Debug, Default, PartialEq, Eq)]
struct IndexSummary {
    added: u64,
    /// Number of images that the collection had already.
    present: u64,
    /// Number of files with the same content as another file of this call.
    duplicates: u64,
    /// Number of files that are not images.
    ignored: u64,
    /// Images that were not added.
    failed: Vec<FileFailure>,
    /// Number of `failed` entries printed so far.
    reported: usize,
}

impl IndexSummary {
    /// Prints the failures since the last call, up to [`FAILURES_SHOWN_MAX`] in all calls together.
    fn report_failures(&mut self, bar: &ProgressBar) {
        let from = self.reported;
        let to = self.failed.len();
        let lines = self.failed[from..to.min(FAILURES_SHOWN_MAX).max(from)].iter();
        bar.suspend(|| {
            lines.for_each(|FileFailure { name, reason }| {
                print_note(&format!("not added: {name}: {reason}"))
            })
        });
        self.reported = to;
    }
}

/// Adds the images that the collection lacks.
///
/// # Errors
/// Returns an error if a folder or the server cannot be reached or refuses images, and a silent
/// error with code 1 if some images failed.
pub(super) fn run(args: &IndexArgs) -> CommandResult {
    let walked = walk(&args.sources)?;
    if let Some(note) = unsupported_note(walked.unsupported) {
        print_note(&note);
    }
    let client = args.server.client()?;
    // A missing server or key is reported before anything is hashed.
    client.get("/v1/images")?;
    let bar = progress_bar(walked.found.len());
    let is_notified = AtomicBool::new(false);
    let on_busy = |reason: &str| {
        // Once is enough: the other images wait for the same reason.
        if !is_notified.swap(true, Ordering::Relaxed) {
            bar.suspend(|| {
                print_note(&format!(
                    "the server does not take images yet; they are sent again: {reason}"
                ));
            });
        }
    };
    let mut target = UploadTarget {
        client: &client,
        collection: &args.collection,
        kind: args.kind.map(ImageKindName::name),
        model: args.model.as_deref(),
        payload: args.payload.as_deref(),
        background: false,
        on_busy: &on_busy,
    };
    let started = Instant::now();
    let WalkResult { found, ignored, unread, .. } = walked;
    let mut summary = IndexSummary { ignored, failed: unread, ..IndexSummary::default() };
    let mut seen = HashSet::new();
    summary.report_failures(&bar);
    for page in found.chunks(MISSING_IDS_MAX) {
        bar.set_message("hashing");
        let wanted = missing(page, &target, args.connections, &mut seen, &mut summary)?;
        bar.inc((page.len() - wanted.len()) as u64);
        target.background = !args.foreground && wanted.len() >= BULK_MIN;
        send(&wanted, &target, args.connections, &bar, &mut summary)?;
        summary.report_failures(&bar);
    }
    bar.finish_and_clear();
    report(&summary, &args.collection, started.elapsed())?;
    if summary.added + summary.present > 0 {
        print(&next_step(&client, &args.collection))?;
    }
    if summary.failed.is_empty() { Ok(()) } else { Err(CommandError::silent(ExitStatus::Failed)) }
}

/// Returns the line that says how to search the images.
fn next_step(client: &ServerClient, collection: &str) -> String {
    let base = client.base();
    let command = format!("millpond images search FILE --collection {collection}");
    if client.is_socket() {
        format!("search them with `{command} --url {base}`\n")
    } else {
        format!("search them at {base}/images?collection={collection} or with `{command}`\n")
    }
}

/// Returns the note about ignored files of image formats that are not supported; `None` without
/// such files.
fn unsupported_note(files: u64) -> Option<String> {
    (files > 0).then(|| {
        format!(
            "{files} of the ignored files are images of formats that are not supported (such as HEIC, AVIF, GIF and raw \
             data of cameras); to add them, convert them to JPEG or PNG"
        )
    })
}

/// Returns a bar on standard error that counts to `images`. It is hidden if that is not a terminal.
fn progress_bar(images: usize) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(images as u64), ProgressDrawTarget::stderr());
    if let Ok(style) =
        ProgressStyle::with_template("{bar:30} {pos} of {len}, {per_sec}, {eta} left  {wide_msg}")
    {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.enable_steady_tick(DRAW_INTERVAL);
    bar
}

/// Returns the images of `page` that the collection lacks, each content once. Counts the others in
/// `summary`. `seen` has the ids of all images of the call, by content.
///
/// # Errors
/// Returns the error of the request to the server. A file that cannot be read counts as failed.
fn missing<'a>(
    page: &'a [WalkedFile],
    target: &UploadTarget<'_>,
    threads: u16,
    seen: &mut HashSet<String>,
    summary: &mut IndexSummary,
) -> CommandResult<Vec<&'a WalkedFile>> {
    let ids = in_parallel(page, threads, |found| Ok(id_of(&found.path)))?;
    let mut fresh: Vec<(&WalkedFile, String)> = Vec::new();
    for (found, id) in page.iter().zip(ids) {
        match id {
            Err(error) => {
                let name = found.name.clone();
                summary.failed.push(FileFailure { name, reason: error.to_string() });
            }
            Ok(id) if !seen.insert(id.clone()) => summary.duplicates += 1,
            Ok(id) => fresh.push((found, id)),
        }
    }
    let new_ids: Vec<&str> = fresh.iter().map(|(_, id)| id.as_str()).collect();
    let lacking: HashSet<String> = if new_ids.is_empty() {
        HashSet::new()
    } else {
        target.missing(&new_ids)?.into_iter().collect()
    };
    let wanted: Vec<&WalkedFile> =
        fresh.iter().filter(|(_, id)| lacking.contains(id)).map(|(found, _)| *found).collect();
    summary.present += (fresh.len() - wanted.len()) as u64;
    Ok(wanted)
}

/// Sends `wanted` over several connections, and counts the outcomes in `summary`. The first image
/// is sent alone, since it may create the collection.
///
/// # Errors
/// Returns the first error of a request. An image that the server refuses counts as failed.
fn send(
    wanted: &[&WalkedFile],
    target: &UploadTarget<'_>,
    connections: u16,
    bar: &ProgressBar,
    summary: &mut IndexSummary,
) -> CommandResult {
    let put = |found: &&WalkedFile| {
        bar.set_message(found.name.clone());
        let outcome = target.put(found)?;
        bar.inc(1);
        Ok(outcome)
    };
    let (first, rest) = wanted.split_at(wanted.len().min(1));
    let mut outcomes = in_parallel(first, 1, put)?;
    outcomes.extend(in_parallel(rest, connections, put)?);
    for (found, outcome) in wanted.iter().zip(outcomes) {
        match outcome {
            UploadOutcome::Added => summary.added += 1,
            UploadOutcome::Present => summary.present += 1,
            UploadOutcome::Failed(reason) => {
                // The server's message may start with the image's name too.
                let reason =
                    reason.strip_prefix(&format!("{}: ", found.name)).unwrap_or(&reason).to_owned();
                summary.failed.push(FileFailure { name: found.name.clone(), reason });
            }
        }
    }
    Ok(())
}

/// Calls `work` for each of `items` on `threads` threads. Returns the results in order.
///
/// # Errors
/// Returns the first error. No further item begins after it.
fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    threads: u16,
    work: impl Fn(&T) -> CommandResult<R> + Sync,
) -> CommandResult<Vec<R>> {
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    let done: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let work_through = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let (Some(item), Some(place)) = (items.get(at), done.get(at)) else { return };
            match work(item) {
                Ok(result) => *place.lock() = Some(result),
                Err(error) => {
                    failure.lock().get_or_insert(error);
                    next.store(items.len(), Ordering::Relaxed);
                    return;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..usize::from(threads).min(items.len()) {
            scope.spawn(work_through);
        }
    });
    if let Some(error) = failure.lock().take() {
        return Err(error);
    }
    Ok(done.iter().filter_map(|place| place.lock().take()).collect())
}

/// Prints how many failures were not shown, and the summary.
fn report(summary: &IndexSummary, collection: &str, took: Duration) -> CommandResult {
    if let Some(more @ 1..) = summary.failed.len().checked_sub(FAILURES_SHOWN_MAX) {
        print_note(&format!("not added: {more} more"));
    }
    print(&format!("{}\n", summary_line(summary, collection, took)))
}

/// Returns the last line of the output:
/// "photos: 12 added, 3 already there, 1 failed, 4 the same again, 2 other files ignored, in 4.0 s
/// (3.0 a second)".
fn summary_line(summary: &IndexSummary, collection: &str, took: Duration) -> String {
    let mut line =
        format!("{collection}: {} added, {} already there", summary.added, summary.present);
    if !summary.failed.is_empty() {
        line.push_str(&format!(", {} failed", summary.failed.len()));
    }
    if summary.duplicates > 0 {
        line.push_str(&format!(", {} the same again", summary.duplicates));
    }
    if summary.ignored > 0 {
        line.push_str(&format!(", {} other files ignored", summary.ignored));
    }
    let seconds = took.as_secs_f64();
    line.push_str(&format!(", in {seconds:.1} s"));
    if summary.added > 0 && seconds > 0.0 {
        line.push_str(&format!(" ({:.1} a second)", summary.added as f64 / seconds));
    }
    line
}

#[cfg(test)]
mod tests {
    use loadgen::tls::TlsArgs;

    use super::*;
    use crate::client::ServerArgs;

    #[test]
    fn parallel_work_keeps_its_order_and_ends_with_a_failure() {
        let items: Vec<u32> = (0..500).collect();
        assert_eq!(
            in_parallel(&items, 7, |item| Ok(item * 2)).unwrap(),
            items.iter().map(|item| item * 2).collect::<Vec<_>>()
        );
        assert!(in_parallel(&[], 4, |item: &u32| Ok(*item)).unwrap().is_empty());
        let failed = in_parallel(&items, 3, |item| {
            if *item == 9 { Err(CommandError::failed("nine")) } else { Ok(()) }
        });
        assert_eq!(failed.unwrap_err().message(), "nine");
    }

    #[test]
    fn the_page_of_a_socket_is_not_offered() {
        let step = |url: &str| {
            let args = ServerArgs { url: Some(url.into()), tls: TlsArgs::default() };
            next_step(&ServerClient::new(&args).ok().unwrap(), "photos")
        };
        let command = "`millpond images search FILE --collection photos";
        let page = "http://h:1/images?collection=photos";
        assert_eq!(step("http://h:1"), format!("search them at {page} or with {command}`\n"));
        assert_eq!(step("unix:/s"), format!("search them with {command} --url unix:/s`\n"));
    }

    #[test]
    fn images_of_unsupported_formats_are_reported() {
        assert_eq!(unsupported_note(0), None);
        assert!(unsupported_note(7).is_some_and(|note| note.starts_with("7 of the ignored files")));
    }

    #[test]
    fn the_last_line_counts_everything() {
        let mut summary = IndexSummary { added: 12, present: 3, ..IndexSummary::default() };
        let took = Duration::from_secs(4);
        assert_eq!(
            summary_line(&summary, "photos", took),
            "photos: 12 added, 3 already there, in 4.0 s (3.0 a second)"
        );
        summary.failed.push(FileFailure { name: "a".into(), reason: "b".into() });
        (summary.duplicates, summary.ignored) = (4, 2);
        assert!(
            summary_line(&summary, "photos", took)
                .contains("1 failed, 4 the same again, 2 other files ignored")
        );
    }

    #[test]
    fn collection_names_follow_the_servers_rules() {
        let longest = "x".repeat(COLLECTION_BYTES_MAX);
        for name in ["photos", "a.b-c_9", &longest] {
            assert!(collection_name(name).is_ok(), "{name}");
        }
        for name in ["", "my photos", ".a", "a/b", "fotoß", &format!("{longest}x")] {
            assert!(collection_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn payloads_are_objects() {
        assert!(json_object("{\"a\":1}").is_ok());
        assert!(json_object("[1]").is_err() && json_object("{").is_err());
    }
}
