//! Durable stores to persistent memory. Lines of the processor's cache are flushed, and a fence
//! waits for the flushes. Every such step goes through here, where a watcher can observe it.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a cache line, which is flushed as a whole.
pub(crate) const LINE_BYTES: usize = 64;
/// Bytes of a word. Only stores of a word are never seen in part after a loss of power.
pub(crate) const WORD_BYTES: usize = 8;

/// Observes every store, flush and fence in the order the processor does them. Offsets are from the
/// start of the mapped file. The writer numbers its files.
pub trait Watch: Send + Sync + Debug {
    /// Records that `bytes` were stored at `offset`, in no particular order.
    fn stored(&self, file: u64, offset: u64, bytes: &[u8]);
    /// Records that the cache lines of `bytes` bytes at `offset` are being flushed.
    fn flushed(&self, file: u64, offset: u64, bytes: usize);
    /// Records that all earlier flushes of the file are done.
    fn fenced(&self, file: u64);
}

/// Instruction by which this processor writes a line back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 has these"))]
enum Instruction {
    /// CLWB: keeps the line in the cache.
    WriteBack,
    /// CLFLUSHOPT: drops the line without waiting for others.
    FlushOptimised,
    /// CLFLUSH: drops one line after another.
    Flush,
}

/// Cache lines of one mapped file, with the instruction that writes them back.
#[derive(Debug)]
pub(super) struct CacheLines {
    file: u64,
    instruction: Instruction,
    watch: Option<Arc<dyn Watch>>,
}

impl CacheLines {
    pub(super) fn new(file: u64, watch: Option<Arc<dyn Watch>>) -> CacheLines {
        CacheLines { file, instruction: instruction(), watch }
    }

    /// Stores bytes at `offset` of the mapping at `start`.
    ///
    /// # Safety
    /// The mapping is writable there, and no other access to these bytes happens meanwhile.
    pub(super) unsafe fn store(&self, start: *mut u8, offset: u64, bytes: &[u8]) {
        // SAFETY: by the caller.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), start.add(offset as usize), bytes.len())
        };
        if let Some(watch) = &self.watch {
            watch.stored(self.file, offset, bytes);
        }
    }

    /// Stores one word, which becomes durable as a whole or not at all.
    ///
    /// # Safety
    /// As for [`store`](Self::store). `offset` is a multiple of 8, and so is `start`.
    pub(super) unsafe fn store_word(&self, start: *mut u8, offset: u64, word: u64) {
        // SAFETY: by the caller; an aligned atomic store is one store of the processor.
        unsafe { AtomicU64::from_ptr(start.add(offset as usize).cast()) }
            .store(word.to_le(), Ordering::Release);
        if let Some(watch) = &self.watch {
            watch.stored(self.file, offset, &word.to_le_bytes());
        }
    }

    /// Starts writing every line of a range back to memory.
    ///
    /// # Safety
    /// The range is mapped.
    pub(super) unsafe fn flush(&self, start: *mut u8, offset: u64, bytes: usize) {
        let first = offset as usize / LINE_BYTES * LINE_BYTES;
        for line in (first..offset as usize + bytes).step_by(LINE_BYTES) {
            // SAFETY: by the caller's promise, the line lies in a mapped page.
            unsafe { flush_line(self.instruction, start.add(line)) };
            if let Some(watch) = &self.watch {
                watch.flushed(self.file, line as u64, LINE_BYTES);
            }
        }
    }

    /// Waits until everything flushed so far is in memory.
    pub(super) fn fence(&self) {
        fence();
        if let Some(watch) = &self.watch {
            watch.fenced(self.file);
        }
    }
}

/// Returns the best instruction of this processor that writes a cache line back to memory.
#[cfg(target_arch = "x86_64")]
fn instruction() -> Instruction {
    use std::arch::x86_64::{__cpuid_count, __get_cpuid_max};
    // CPUID leaf 7: bit 24 of EBX is CLWB, bit 23 is CLFLUSHOPT (Intel SDM, volume 2, CPUID).
    #[allow(unused_unsafe, reason = "asking the processor became safe in a later compiler")]
    // SAFETY: every x86-64 processor has the instruction; the leaf is read only if it exists.
    let features = unsafe { if __get_cpuid_max(0).0 < 7 { 0 } else { __cpuid_count(7, 0).ebx } };
    match (features >> 24 & 1, features >> 23 & 1) {
        (1, _) => Instruction::WriteBack,
        (_, 1) => Instruction::FlushOptimised,
        _ => Instruction::Flush,
    }
}

/// # Safety
/// The line is mapped, and the instruction is one the processor has.
#[cfg(target_arch = "x86_64")]
unsafe fn flush_line(instruction: Instruction, line: *mut u8) {
    // SAFETY: by the caller; none of them changes memory or registers.
    unsafe {
        match instruction {
            Instruction::WriteBack => {
                std::arch::asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags));
            }
            Instruction::FlushOptimised => {
                std::arch::asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
            }
            Instruction::Flush => std::arch::x86_64::_mm_clflush(line),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn fence() {
    // SAFETY: every x86-64 processor has the instruction.
    #[allow(unused_unsafe, reason = "the fence became safe in a later compiler")]
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

#[cfg(not(target_arch = "x86_64"))]
fn instruction() -> Instruction {
    Instruction::Flush
}

/// Does nothing. Only the simulated medium calls this, because the real medium is refused if this
/// processor cannot flush lines.
///
/// # Safety
/// Requires nothing. It is unsafe like its namesake.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn flush_line(_instruction: Instruction, _line: *mut u8) {}

#[cfg(not(target_arch = "x86_64"))]
fn fence() {
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// True if stores can be made durable on this processor.
pub(super) const SUPPORTED: bool = cfg!(target_arch = "x86_64");
