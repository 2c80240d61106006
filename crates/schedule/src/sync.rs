//! The locks of the dispatch: those of the standard library, or loom's models of them in its test.

#[cfg(millpond_loom)]
pub(crate) use loom::sync::atomic::AtomicUsize;
#[cfg(millpond_loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(millpond_loom))]
pub(crate) use std::sync::atomic::AtomicUsize;
#[cfg(not(millpond_loom))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
