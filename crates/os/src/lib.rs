//! Services of Linux and of the allocator for the other crates. The list of modules below names
//! them.
//!
//! # The invariant
//! A refusal of the system costs precision or speed, never correctness. Every setting here either
//! returns an error or is logged and ignored.
//!
//! # Not here
//! No policy, and no threads except those of [`background`].
//!
//! # Modules
//! * Threads: `thread` sets priority, name and core, `background` gets work done at low priority,
//!   `thread_table` and `sched_stat` read their times.
//! * Processors: `core_times`, `cpu_account`, `cpu_quota`, `control_group`.
//! * Memory: `process`, `jemalloc`, `aligned_buffer`.
//! * Files: `direct_file`, `direct_writer`, `regular_file`, `file_lock`, `file_stamp`,
//!   `watched_files`, `private`, `durable`, `disk`.
//! * Pacing: `rate`, `warning_limiter`.
//! * Other processes: `service_manager`, `child_program`.

#![allow(unsafe_code)]

mod aligned_buffer;
pub mod background;
mod child_program;
mod control_group;
mod core_times;
mod cpu_account;
mod cpu_quota;
mod direct_file;
mod direct_writer;
pub mod disk;
mod durable;
mod file_lock;
mod file_stamp;
pub mod jemalloc;
pub mod private;
pub mod process;
mod rate;
mod regular_file;
mod sched_stat;
mod service_manager;
pub mod thread;
mod thread_table;
mod warning_limiter;
mod watched_files;

pub use aligned_buffer::AlignedBuffer;
pub use child_program::ChildProgram;
pub use core_times::CoreTimes;
pub use cpu_account::{Charged, CpuAccount, CpuAccountUsage, CpuCharge};
pub use cpu_quota::CpuQuota;
pub use direct_file::{DIRECT_ALIGNMENT, DirectFile, is_direct_refusal, leave_direct};
pub use direct_writer::DirectWriter;
pub use durable::sync_directory;
pub use file_lock::lock_file;
pub use file_stamp::FileStamp;
pub use rate::{Pacer, Rate};
pub use regular_file::{RegularFile, check_regular_file, opened_path, read_regular_file};
pub use sched_stat::{SchedStat, SchedTimes};
pub use service_manager::{ReloadNotice, ServiceManager};
pub use thread_table::ThreadTable;
pub use warning_limiter::WarningLimiter;
pub use watched_files::WatchedFiles;
