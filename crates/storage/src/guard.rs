//! Mapped pages that the hardware has lost.
//!
//! Loading from such a page (a poisoned line of persistent memory, a disk error, a truncated file)
//! raises SIGBUS, which ends the process. The handler here replaces the page by zeros, and the load
//! is repeated. Its reader sees a wrong checksum and reports one damaged page like any other. A
//! signal for any other address goes to the previous handler.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

/// Maximum mappings guarded at once. Further ones are not guarded, which is logged.
const GUARDED_MAX: usize = 4096;

/// Bytes of the kernel's page, which is the smallest piece that can be replaced. Read before the
/// handler is installed.
static SYSTEM_PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// A guarded range of addresses. It is unused if `start` is 0.
struct GuardedRange {
    start: AtomicUsize,
    end: AtomicUsize,
    writable: AtomicU32,
    lost: AtomicU32,
}

static RANGES: [GuardedRange; GUARDED_MAX] = [const {
    GuardedRange {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        writable: AtomicU32::new(0),
        lost: AtomicU32::new(0),
    }
}; GUARDED_MAX];

/// Number of table entries ever used, which bounds the handler's search.
static USED: AtomicUsize = AtomicUsize::new(0);
static CHANGES: Mutex<()> = Mutex::new(());
static PREVIOUS_HANDLER: OnceLock<libc::sigaction> = OnceLock::new();

/// Guard of a mapping. It must be dropped before the mapping.
#[derive(Debug)]
pub(crate) struct Guard {
    place: Option<usize>,
}

impl Guard {
    /// Guards the `bytes` bytes of a mapping at the address `start`. `writable` is true if the
    /// mapping can be written.
    pub(crate) fn new(start: usize, bytes: usize, writable: bool) -> Guard {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        let _changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        let place = RANGES.iter().position(|range| range.start.load(Ordering::Relaxed) == 0);
        match place {
            Some(place) => {
                let range = &RANGES[place];
                range.end.store(start + bytes, Ordering::Relaxed);
                range.writable.store(u32::from(writable), Ordering::Relaxed);
                range.lost.store(0, Ordering::Relaxed);
                range.start.store(start, Ordering::Release);
                USED.fetch_max(place + 1, Ordering::Release);
            }
            None => tracing::warn!(
                "more than {GUARDED_MAX} mapped files: damage in further ones ends the process"
            ),
        }
        Guard { place }
    }

    /// Returns the number of lost pages of the mapping.
    pub(crate) fn lost(&self) -> u32 {
        self.place
            .and_then(|place| RANGES.get(place))
            .map_or(0, |range| range.lost.load(Ordering::Acquire))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(range) = self.place.and_then(|place| RANGES.get(place)) {
            range.start.store(0, Ordering::Release);
        }
    }
}

/// Installs the handler of SIGBUS.
fn install() {
    SYSTEM_PAGE_BYTES.store(os::process::page_bytes(), Ordering::Release);
    // SAFETY: all-zero bytes are a valid sigaction; the first call only asks, the second installs a
    // handler that calls nothing but mmap and sigaction, which are system calls, and reads atomics.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut before);
        let _ = PREVIOUS_HANDLER.set(before);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        if libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) != 0 {
            let error = std::io::Error::last_os_error();
            tracing::warn!(%error, "damage in a mapped file would end the process");
        }
    }
}

/// Handler of SIGBUS. Replaces a lost page of a guarded mapping by zeros and counts it. Passes any
/// other signal on to the earlier handler.
extern "C" fn on_bus_error(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo; for SIGBUS it has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    let page_bytes = SYSTEM_PAGE_BYTES.load(Ordering::Acquire);
    let page = address & !(page_bytes - 1);
    let used = USED.load(Ordering::Acquire);
    for range in RANGES.iter().take(used) {
        let start = range.start.load(Ordering::Acquire);
        if start != 0 && (start..range.end.load(Ordering::Relaxed)).contains(&page) {
            // Counted first, because a thread that loads the zeros must find the page counted
            // afterwards.
            range.lost.fetch_add(1, Ordering::Release);
            if replace(page, page_bytes, range.writable.load(Ordering::Relaxed) != 0) {
                return;
            }
            break;
        }
    }
    pass_on(signal, info, context);
}

/// Replaces the lost page by a page of zeros.
fn replace(page: usize, page_bytes: usize, writable: bool) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    let address = std::ptr::with_exposed_provenance_mut(page);
    // SAFETY: the page lies in a mapping of ours, which stays mapped while it is guarded; its bytes
    // are lost already.
    let mapped = unsafe { libc::mmap(address, page_bytes, protection, flags, -1, 0) };
    mapped != libc::MAP_FAILED
}

/// Passes the signal to the handler before ours. Without one the default action ends the process
/// when the load is repeated.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = PREVIOUS_HANDLER
        .get()
        .map_or((libc::SIG_DFL, 0), |action| (action.sa_sigaction, action.sa_flags));
    match before {
        (libc::SIG_DFL | libc::SIG_IGN, _) => {
            // SAFETY: sets the default action, which an all-zero sigaction is.
            unsafe {
                let default: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, &default, std::ptr::null_mut());
            }
        }
        (handler, flags) if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the address was given to sigaction as a handler of this type.
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        (handler, _) => {
            // SAFETY: as above, of the other type.
            let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}
