//! jemalloc's settings for a command that works through recordings and ends.
//!
//! The settings compiled in (`.cargo/config.toml`) are a server's: four arenas a core, so that threads seldom meet, and
//! freed pages kept for seconds, so that no request waits for new ones. Here few threads do much work between two
//! allocations, and what each arena keeps for itself only counts against the peak (ADR 0008).

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::environment;

/// Threads that share an arena.
const THREADS_AN_ARENA: usize = 8;

/// The others: freed pages go back within 20 ms, a thread's cache keeps 32 objects of a size, and sizes of which LibTorch
/// has thousands of objects take more pages at once, as each such stretch costs 128 bytes beside it.
const SETTINGS: &str = "max_background_threads:1,dirty_decay_ms:20,tcache_nslots_small_max:32,\
                        slab_sizes:1-64:8|128-128:8|512-512:8|6144-6144:12";

/// Starts this program anew, in this process, with settings for so many inference threads: jemalloc reads them before `main`
/// begins. Nothing happens where the environment has settings, which then hold, and where there is no jemalloc.
pub(super) fn restart_frugally(threads: Option<usize>) {
    if !cfg!(feature = "jemalloc") || environment::MALLOC_CONF.text().is_some() {
        return;
    }
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let arenas = threads.unwrap_or_else(cores).div_ceil(THREADS_AN_ARENA).max(1);
    let settings = format!("narenas:{arenas},{SETTINGS}");
    let mut arguments = std::env::args_os();
    let (Ok(program), Some(name)) = (std::env::current_exe(), arguments.next()) else { return };
    // It returns only where it failed, and then this process goes on with the settings that it has.
    let _ =
        Command::new(program).arg0(name).args(arguments).env(environment::MALLOC_CONF.name, settings).exec();
}
