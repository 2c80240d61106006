//! Locks of files against other processes.

use std::fs::{File, TryLockError};
use std::io;
use std::time::{Duration, Instant};

/// Time between two attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Locks a file against other processes until it is closed. Waits for at most `wait`. Another
/// process may still have the file for a moment. It is a child of this process from its fork until
/// it executes its program, or a killed process until its memory is freed. Returns false if another
/// process still has the lock.
///
/// # Errors
/// The error of a file system without locks.
pub fn lock_file(file: &File, wait: Duration) -> io::Result<bool> {
    let until = Instant::now() + wait;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(TryLockError::WouldBlock) => return Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = File::create(&path).unwrap();
        let second = File::open(&path).unwrap();
        assert!(lock_file(&first, Duration::ZERO).unwrap());
        assert!(!lock_file(&second, LOCK_PAUSE).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(LOCK_PAUSE);
                drop(first);
            });
            assert!(lock_file(&second, Duration::from_secs(60)).unwrap());
        });
    }
}
