//! Files of certificates and keys that are read again while the server runs: when they change, and
//! at SIGHUP.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::Result;
use http_client::TlsPeer;
use metrics::{KindLabels, Metrics};
use os::FileStamp;
use tokio::signal::unix::Signal;
use tokio::sync::watch;
use transport::TlsIdentity;

use crate::compose::Server;

/// Time between two checks of the files.
const POLL: Duration = Duration::from_secs(1);

/// Files that are read together.
struct ReloadedFiles {
    content: &'static str,
    paths: Vec<PathBuf>,
    /// Stamps of `paths`; `None` for a file that cannot be found.
    seen: Vec<Option<FileStamp>>,
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
        let paths: Vec<PathBuf> = paths.iter().map(|path| path.to_path_buf()).collect();
        // Before the read, so that no later change is missed.
        let seen = stamps(&paths);
        if let Err(error) = reload() {
            tracing::error!(%error, "the {content} cannot be used and stay as they were");
        }
        ReloadedFiles { content, seen, paths, reload: Box::new(reload) }
    }

    /// Reads the files if they have changed, or if `forced`. A mistake is logged once for each
    /// change, since the content before stays in effect.
    fn poll(&mut self, forced: bool, metrics: &Metrics) {
        let now = stamps(&self.paths);
        if !forced && now == self.seen {
            return;
        }
        self.seen = now;
        let content = self.content;
        let kind = match (self.reload)() {
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

fn stamps(paths: &[PathBuf]) -> Vec<Option<FileStamp>> {
    paths.iter().map(|path| FileStamp::of(path)).collect()
}

/// All files of a server that control access.
pub(crate) struct AccessFiles {
    files: Vec<ReloadedFiles>,
    hangups: Signal,
    metrics: Arc<Metrics>,
}

impl AccessFiles {
    /// Returns the files of a server, possibly none: the signals `hangups` then do nothing.
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
        files.poll(false, &metrics);
        assert_eq!((&**read.lock().unwrap(), reloads.get()), ("changed again", 1));
    }
}
