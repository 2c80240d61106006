//! Parts of one piece of work, which several threads claim one by one.

use std::sync::atomic::{AtomicUsize, Ordering};

use base::{Error, Result};
use parking_lot::{Condvar, Mutex};

/// Parts that are claimed in order. The owner claims parts like every helper, so the work is done
/// even if no helper comes.
#[derive(Debug)]
pub struct SharedParts {
    count: usize,
    next: AtomicUsize,
    helpers: Mutex<HelperCount>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct HelperCount {
    running: usize,
    panicked: bool,
}

impl SharedParts {
    /// Creates `count` parts.
    pub fn new(count: usize) -> SharedParts {
        SharedParts {
            count,
            next: AtomicUsize::new(0),
            helpers: Mutex::default(),
            left: Condvar::new(),
        }
    }

    /// Returns the number of parts that are left to claim.
    pub fn unclaimed(&self) -> usize {
        self.count.saturating_sub(self.next.load(Ordering::Relaxed))
    }

    /// Returns true if a part is left to claim.
    pub fn is_left(&self) -> bool {
        self.unclaimed() > 0
    }

    /// Returns the number of the next part, or `None` if all are claimed.
    pub fn claim(&self) -> Option<usize> {
        // Read first, so that late helpers do not increment the counter without end.
        if !self.is_left() {
            return None;
        }
        let part = self.next.fetch_add(1, Ordering::Relaxed);
        (part < self.count).then_some(part)
    }

    /// Drops the parts that are not claimed yet, because the work failed or its time is up.
    pub fn stop(&self) {
        self.next.store(self.count, Ordering::Relaxed);
    }

    /// Returns a guard. When the owner drops it, also by a panic, all parts that are left are
    /// dropped, so a later helper finds none.
    pub fn owner(&self) -> PartsOwner<'_> {
        PartsOwner(self)
    }

    /// Registers a helper before its first claim. The helper leaves after it has delivered its
    /// results.
    pub fn enter(&self) -> PartsHelper<'_> {
        self.helpers.lock().running += 1;
        PartsHelper(self)
    }

    /// Waits until all helpers have left, or until `find` returns other work, which this returns.
    /// Calls `find` first, and again after each [`SharedParts::wake`]. The owner calls this if no
    /// part is left.
    pub fn wait_or<T>(&self, find: impl Fn() -> Option<T>) -> Option<T> {
        let mut helpers = self.helpers.lock();
        while helpers.running > 0 {
            let found = find();
            if found.is_some() {
                return found;
            }
            self.left.wait(&mut helpers);
        }
        None
    }

    /// Wakes an owner that waits for other work.
    pub fn wake(&self) {
        // Locked, so that this does not fall between the owner's last check and its wait.
        let _helpers = self.helpers.lock();
        self.left.notify_all();
    }

    /// Drops the parts that are not claimed yet, and waits until all helpers have left. The owner
    /// calls this after its last claim. Parts are left if the owner has reached its deadline.
    ///
    /// # Errors
    /// `Internal` if a helper panicked: its parts are lost.
    pub fn wait(&self) -> Result<()> {
        // A helper that enters later finds no part, because both lock `helpers`.
        self.stop();
        let mut helpers = self.helpers.lock();
        while helpers.running > 0 {
            self.left.wait(&mut helpers);
        }
        if helpers.panicked {
            Err(Error::internal("a thread that did a part of this query panicked"))
        } else {
            Ok(())
        }
    }
}

/// Owner that may claim parts.
pub struct PartsOwner<'a>(&'a SharedParts);

impl Drop for PartsOwner<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Helper that may hold a part.
pub struct PartsHelper<'a>(&'a SharedParts);

impl Drop for PartsHelper<'_> {
    fn drop(&mut self) {
        let mut helpers = self.0.helpers.lock();
        helpers.running -= 1;
        helpers.panicked |= std::thread::panicking();
        self.0.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn each_part_is_claimed_once() {
        let parts = SharedParts::new(1000);
        let claimed = Mutex::new(Vec::new());
        let work = || {
            let _helper = parts.enter();
            while let Some(part) = parts.claim() {
                claimed.lock().push(part);
            }
        };
        std::thread::scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        parts.wait().unwrap();
        let mut claimed = claimed.into_inner();
        claimed.sort_unstable();
        assert_eq!(claimed, (0..1000).collect::<Vec<_>>());
        assert_eq!(parts.claim(), None);
    }

    #[test]
    fn stopped_parts_cannot_be_claimed() {
        let parts = SharedParts::new(9);
        assert_eq!((parts.claim(), parts.claim()), (Some(0), Some(1)));
        assert_eq!(parts.unclaimed(), 7);
        parts.stop();
        assert!(!parts.is_left());
        assert_eq!(parts.claim(), None);
        parts.wait().unwrap();
    }

    #[test]
    fn no_part_is_left_after_the_owner() {
        let parts = SharedParts::new(9);
        assert_eq!(parts.claim(), Some(0));
        parts.wait().unwrap();
        assert_eq!(parts.claim(), None);
        let parts = SharedParts::new(9);
        let owner = catch_unwind(AssertUnwindSafe(|| {
            let _owner = parts.owner();
            panic!("on purpose");
        }));
        assert!(owner.is_err());
        assert_eq!(parts.claim(), None);
    }

    #[test]
    fn the_owner_does_other_work_while_it_waits() {
        let parts = SharedParts::new(1);
        let other = Mutex::new(Vec::new());
        assert_eq!(parts.wait_or(|| other.lock().pop()), None, "no helper runs");
        std::thread::scope(|scope| {
            let helper = parts.enter();
            scope.spawn(|| {
                let _helper = helper;
                for work in 0..100 {
                    other.lock().push(work);
                    parts.wake();
                }
                while !other.lock().is_empty() {
                    std::thread::yield_now();
                }
            });
            let mut done = Vec::new();
            while let Some(work) = parts.wait_or(|| other.lock().pop()) {
                done.push(work);
            }
            done.sort_unstable();
            assert_eq!(done, (0..100).collect::<Vec<_>>());
        });
        parts.wait().unwrap();
    }

    #[test]
    fn a_panic_of_a_helper_is_an_error() {
        let parts = SharedParts::new(1);
        let helper = catch_unwind(AssertUnwindSafe(|| {
            let _helper = parts.enter();
            panic!("on purpose");
        }));
        assert!(helper.is_err());
        assert_eq!(parts.wait().unwrap_err().kind(), base::ErrorKind::Internal);
    }
}
