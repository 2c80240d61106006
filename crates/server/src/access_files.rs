//! Files of certificates and keys that are read again while the server runs: when they change, and
//! at SIGHUP.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::Result;
use http_client::TlsPeer;
use metrics::{KindLabels, Metrics};
use os::WatchedFiles;
use tokio::signal::unix::Signal;
use tokio::sync::watch;
use transport::TlsIdentity;

use crate::compose::Server;

/// Time between two checks of the files. Two checks in a row must find the same files, so changes
/// take effect within a second.
const POLL: Duration = Duration::from_millis(500);

/// Files that are read together.
struct ReloadedFiles {
    content: &'static str,
    files: WatchedFiles,
    reload: Box<dyn Fn() -> Result<()> + Send>,
}

impl ReloadedFiles {
    /// Begins to follow files that were read when the server started. Models may have been loaded
    /// since then, which takes minutes, so the files are read once more.
    fn new(
        content: &'static str,
        paths: &[&Path],
        reload: impl Fn() -> Result<()> + Send + 'static,
    ) -> ReloadedFiles {
        let mut files = WatchedFiles::new(paths.iter().map(|path| path.to_path_buf()).collect());
        if let Some(Err(error)) = files.read_changed(true, &reload) {
            tracing::error!(%error, "the {content} cannot be used and stay as they were");
        }
        ReloadedFiles { content, files, reload: Box::new(reload) }
    }

    /// Reads the files if they have changed, or if `forced`. A mistake is logged once for each
    /// change, since the content before stays in effect. After a failure the files are read again,
    /// since the cause can end without a change of the files.
    fn poll(&mut self, forced: bool, metrics: &Metrics) {
        let Some(result) = self.files.read_changed(forced, &self.reload) else { return };
        let content = self.content;
        let kind = match result {
            Ok(()) => {
                tracing::info!("the {content} were read again");
                "ok"
            }
            Err(error) => {
                tracing::error!(%error, "the {content} cannot be used and stay as they were");
                "failed"
            }
        };
        metrics.access_reloads.get_or_create(&KindLabels { kind }).inc();
    }
}

/// All files of a server that control access.
pub(crate) struct AccessFiles {
    files: Vec<ReloadedFiles>,
    hangups: Signal,
    metrics: Arc<Metrics>,
}

impl AccessFiles {
    /// Returns the files of a server. If there are none, the signals `hangups` do nothing.
    pub(crate) fn of(
        tls: &Option<Arc<TlsIdentity>>,
        server: &Server,
        hangups: Signal,
    ) -> AccessFiles {
        let mut files = Vec::new();
        if let Some(tls) = tls.clone() {
            let paths = tls.files().clone();
            files.push(ReloadedFiles::new("certificates", &paths.paths(), move || tls.reload()));
        }
        let of_cluster = server.cluster.get().map_or(&[][..], |cluster| cluster.tls());
        let of_turns = server.core.turns.iter().filter_map(|turns| turns.tls.as_ref());
        for tls in of_cluster.iter().chain(of_turns) {
            let content = match tls.files().peer {
                TlsPeer::Nodes => "certificates for other nodes",
                TlsPeer::Etcd => "certificates for etcd",
            };
            let paths = tls.files().paths();
            let tls = tls.clone();
            files.push(ReloadedFiles::new(content, &paths, move || tls.reload()));
        }
        if let Some(keys) = server.access.keys.clone()
            && let Some(path) = keys.path().map(Path::to_owned)
        {
            files.push(ReloadedFiles::new("keys", &[&path], move || keys.reload()));
        }
        AccessFiles { files, hangups, metrics: server.core.metrics.clone() }
    }

    /// Follows the files until `stopped` is true.
    pub(crate) async fn follow(mut self, mut stopped: watch::Receiver<bool>) {
        loop {
            let forced = tokio::select! {
                () = tokio::time::sleep(POLL) => false,
                _ = self.hangups.recv() => true,
                _ = stopped.wait_for(|stopped| *stopped) => return,
            };
            let mut files = std::mem::take(&mut self.files);
            let metrics = self.metrics.clone();
            // They may be on a slow disk.
            let polled = tokio::task::spawn_blocking(move || {
                files.iter_mut().for_each(|files| files.poll(forced, &metrics));
                files
            });
            match polled.await {
                Ok(back) => self.files = back,
                Err(error) => {
                    tracing::error!(%error, "certificates and keys are not read again");
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use base::Error;

    use super::*;

    #[test]
    fn a_change_during_the_start_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        let read = Arc::new(Mutex::new("of the start".to_owned()));
        std::fs::write(&path, "changed").unwrap();
        let (seen, source) = (read.clone(), path.clone());
        let mut files = ReloadedFiles::new("keys", &[&path], move || {
            *seen.lock().unwrap() = std::fs::read_to_string(&source).unwrap();
            Ok(())
        });
        assert_eq!(*read.lock().unwrap(), "changed");
        let metrics = Metrics::default();
        let reloads = metrics.access_reloads.get_or_create_owned(&KindLabels { kind: "ok" });
        files.poll(false, &metrics);
        assert_eq!(reloads.get(), 0);
        std::fs::write(&path, "changed again").unwrap();
        for _ in 0..2 {
            files.poll(false, &metrics);
        }
        assert_eq!((&**read.lock().unwrap(), reloads.get()), ("changed again", 1));
    }

    /// The process has no free file descriptor while the new certificates are read.
    #[test]
    fn files_are_read_again_after_a_failure_without_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cert.pem");
        std::fs::write(&path, "new").unwrap();
        let fails = Arc::new(AtomicBool::new(true));
        let failing = fails.clone();
        let mut files = ReloadedFiles::new("certificates", &[&path], move || {
            if failing.load(Ordering::Relaxed) {
                return Err(Error::exhausted("too many open files"));
            }
            Ok(())
        });
        let metrics = Metrics::default();
        let count = |kind| metrics.access_reloads.get_or_create_owned(&KindLabels { kind }).get();
        files.poll(true, &metrics);
        for _ in 0..100 {
            files.poll(false, &metrics);
        }
        assert_eq!((count("failed"), count("ok")), (1, 0), "a failure is reported once");
        fails.store(false, Ordering::Relaxed);
        for _ in 0..100 {
            files.poll(false, &metrics);
        }
        assert_eq!((count("failed"), count("ok")), (1, 1));
    }
}
