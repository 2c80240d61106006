//! The unload threads: they wait for the last user of a retired version and release it. No other
//! thread releases a session.
//!
//! A thread watches all its retired versions at once, so that a slow request delays only its own
//! version. The catalogue dropped a version before it comes here, so its number of holders only
//! falls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use base::VersionId;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use engine::Servable;

use crate::DRAIN_LONG;
use crate::activity::LoadActivity;
use crate::message::{Message, Release, Retired};

/// Time between two checks of retired versions in use.
const DRAIN_POLL: Duration = Duration::from_millis(2);

/// State shared by the unload threads.
pub(crate) struct Unloader {
    pub(crate) background: bool,
    /// Set at shutdown. The threads then stop waiting for versions that are still in use.
    pub(crate) abandon: Arc<AtomicBool>,
    /// Order to take no more versions, because another thread releases them.
    pub(crate) leave_rest: Arc<AtomicBool>,
    pub(crate) activity: Arc<LoadActivity>,
    pub(crate) out: Sender<Message>,
}

/// A retired version that is still in use.
struct DrainingVersion {
    retired: Retired,
    /// True once its slow drain was reported.
    reported: bool,
}

impl Unloader {
    /// Runs an unload thread until the channel is closed and everything is released.
    pub(crate) fn run(&self, retired: &Receiver<Retired>) {
        if self.background {
            os::thread::enter_background("unloading");
        }
        let mut draining: Vec<DrainingVersion> = Vec::new();
        let mut open = true;
        while open || !draining.is_empty() {
            open = open && !self.leave_rest.load(Ordering::Relaxed);
            if open {
                open = self.receive(retired, &mut draining);
            } else {
                std::thread::sleep(DRAIN_POLL);
            }
            draining = draining.into_iter().filter_map(|one| self.try_release(one)).collect();
            if self.abandon.load(Ordering::Relaxed) {
                draining.drain(..).for_each(abandon);
            }
        }
    }

    /// Waits for the next retired version, or until the next check of `draining` is due. Returns
    /// false once the channel is closed.
    fn receive(&self, retired: &Receiver<Retired>, draining: &mut Vec<DrainingVersion>) -> bool {
        let received = if draining.is_empty() {
            retired.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            retired.recv_timeout(DRAIN_POLL)
        };
        match received {
            Ok(retired) => draining.push(DrainingVersion { retired, reported: false }),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        true
    }

    /// Releases a version that no request uses any more. Returns it if it is still in use.
    fn try_release(&self, one: DrainingVersion) -> Option<DrainingVersion> {
        let DrainingVersion { retired, mut reported } = one;
        let Retired { id, servable, release, since } = retired;
        // Servables with other settings around the same session are retired too, and dropped first.
        let shared = release.is_some() && servable.shares_session();
        // Requests for other signatures get their servables from this one. So once it has no other
        // holder, no new holder of the others appears.
        let held = Arc::strong_count(&servable) > 1;
        // A request that has dropped this one may hold another. The fence makes its number of
        // holders visible here; the number above alone orders nothing.
        fence(Ordering::Acquire);
        let held = held || servable.signatures_in_use();
        let servable = if shared || held { Err(servable) } else { Arc::try_unwrap(servable) };
        match (servable, release) {
            (Ok(servable), None) => {
                drop(servable);
                None
            }
            (Ok(servable), Some(Release { converted, releasing })) => {
                let drain = since.elapsed();
                let started = Instant::now();
                let _active = self.activity.begin(&id);
                drop_session(&id, servable);
                drop(releasing);
                let unload = started.elapsed();
                os::jemalloc::empty_thread_cache();
                drop(converted);
                // Fails only at shutdown, when the message is not needed.
                let _ = self.out.send(Message::Released { id, drain, unload });
                None
            }
            (Err(servable), release) => {
                if !reported && since.elapsed() > DRAIN_LONG {
                    reported = true;
                    let _ = self.out.send(Message::DrainSlow { id: id.clone() });
                }
                Some(DrainingVersion {
                    retired: Retired { id, servable, release, since },
                    reported,
                })
            }
        }
    }
}

fn drop_session(id: &VersionId, servable: Servable) {
    if catch_unwind(AssertUnwindSafe(|| drop(servable))).is_err() {
        tracing::error!(model = %id.model, version = id.version, "releasing it panicked");
    }
}

/// Leaks a servable that a request still uses at shutdown, so that no request thread releases it.
fn abandon(one: DrainingVersion) {
    tracing::warn!(model = %one.retired.id.model, version = one.retired.id.version, "still in use at shutdown");
    std::mem::forget(one.retired.servable);
}
