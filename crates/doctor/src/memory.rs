//! Memory and huge pages.

use std::path::Path;

use base::units::{MIB, format_bytes};
use memory::{PoolConfig, SLOT_BYTES, SlotPool};
use os::Rate;

use crate::{Check, CheckVerdict, read};

/// Minimum memory to serve any useful model.
const AVAILABLE_MIN: u64 = 256 * MIB;

/// Runs all checks of memory.
pub(crate) fn checks() -> Vec<Check> {
    let setting = |name: &str| {
        read(format!("/sys/kernel/mm/transparent_hugepage/{name}"))
            .map(|text| chosen(&text).to_owned())
    };
    vec![
        size(os::process::machine().map(|machine| (machine.total, machine.available))),
        huge_pages(setting("enabled").as_deref(), setting("defrag").as_deref(), try_huge_page()),
        allocator(os::jemalloc::stats().is_some()),
        balloon(reports_free_pages(Path::new(VIRTIO_DEVICES))),
    ]
}

const VIRTIO_DEVICES: &str = "/sys/bus/virtio/devices";
/// Device number of a virtio balloon (Virtual I/O Device specification 1.2, 5.5).
const BALLOON: &str = "0x0005";
/// Bit of "free page reporting" among the balloon's features (VIRTIO_BALLOON_F_REPORTING).
const REPORTING: usize = 5;

/// Returns true if a virtual machine's balloon reports free pages to the host; `None` without a
/// balloon.
fn reports_free_pages(devices: &Path) -> Option<bool> {
    std::fs::read_dir(devices).ok()?.flatten().find_map(|device| {
        let text = |name: &str| std::fs::read_to_string(device.path().join(name)).ok();
        (text("device")?.trim() == BALLOON).then(|| {
            text("features").is_some_and(|bits| bits.as_bytes().get(REPORTING) == Some(&b'1'))
        })
    })
}

/// Judges the balloon of a virtual machine. `reports` is true if the balloon returns free memory to
/// the host by itself, and `None` without a balloon.
fn balloon(reports: Option<bool>) -> Check {
    let name = "freed memory";
    match reports {
        Some(true) => Check::warn(
            name,
            "goes back to the host",
            "This virtual machine returns free memory to its host within half a minute. Meanwhile, a host that limits the \
             machine's processor time may stop all cores (34 ms of every 100 where this was measured). Memory that is needed \
             again costs about 17 us per page. Models in the pool are not affected, because the pool keeps its memory. The \
             first start takes longer. Do not end large programs on a machine whose server must answer evenly.",
        ),
        Some(false) => Check::ok(
            name,
            "stays",
            "The virtual machine's balloon takes no free memory by itself.",
        ),
        None => Check::ok(name, "stays", "No host takes free memory away."),
    }
}

/// Returns the word in brackets: `madvise` in `always [madvise] never`.
fn chosen(text: &str) -> &str {
    text.split_whitespace()
        .find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
        .unwrap_or(text)
}

/// Judges the memory of the machine: total and available bytes.
fn size(machine: base::Result<(u64, u64)>) -> Check {
    match machine {
        Err(error) => Check::warn("memory", "unknown", format!("{error}; give --pool BYTES.")),
        Ok((total, available)) => {
            let meaning = if available < AVAILABLE_MIN {
                "Too little is free to hold a model and its next version."
            } else if available < total / 2 {
                "More than half is in use. The pool takes up to 80 % of all memory: set --pool BYTES to leave memory to \
                 other programs."
            } else {
                "The pool takes at most 80 % of it (--pool); a swap needs room for two versions of the largest model."
            };
            let verdict = if available < AVAILABLE_MIN {
                CheckVerdict::Fail
            } else {
                CheckVerdict::warn_unless(available >= total / 2)
            };
            let found = format!("{}, {} free", format_bytes(total), format_bytes(available));
            Check::new("memory", verdict, found, meaning)
        }
    }
}

/// Takes one slot from the system and returns its bytes in huge pages.
fn try_huge_page() -> base::Result<u64> {
    let bytes = SLOT_BYTES as u64;
    let pool = SlotPool::new(PoolConfig {
        bytes_max: bytes,
        huge_pages: true,
        fault_rate: Rate::unlimited(),
    })?;
    pool.prefault(bytes)?;
    pool.huge_bytes()
}

fn huge_pages(mode: Option<&str>, defrag: Option<&str>, got: base::Result<u64>) -> Check {
    let settings = format!("enabled={}, defrag={}", mode.unwrap_or("?"), defrag.unwrap_or("?"));
    let name = "huge pages";
    match got {
        Ok(bytes) if bytes >= SLOT_BYTES as u64 => Check::ok(
            name,
            format!("available (2 MiB pages, {settings})"),
            "Parameters lie in 2 MiB pages: fewer address look-ups, and a swap causes almost no page faults.",
        ),
        Ok(_) if mode == Some("never") => Check::warn(
            name,
            format!("switched off ({settings})"),
            "Parameters lie in 4 KiB pages, which costs speed in large tables; as root: \
             echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        Ok(_) => Check::warn(
            name,
            format!("allowed, but not available ({settings})"),
            "Free memory is in pieces or the container forbids it; as root: echo 1 > /proc/sys/vm/compact_memory, or \
             start Millpond early after booting.",
        ),
        Err(error) => Check::warn(name, format!("not tried ({settings})"), error.message()),
    }
}

fn allocator(jemalloc: bool) -> Check {
    if jemalloc {
        let meaning = "Requests and the engines' scratch memory share one allocator that returns memory in the background.";
        return Check::ok("allocator", "jemalloc, process-wide", meaning);
    }
    Check::warn(
        "allocator",
        "not jemalloc",
        "This program was built without jemalloc, or another allocator was loaded before it (LD_PRELOAD?); memory of \
         unloaded models may not be freed.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Error;
    use base::units::GIB;

    #[test]
    fn little_free_memory_is_a_finding() {
        assert_eq!(size(Ok((8 * GIB, 6 * GIB))).verdict, CheckVerdict::Ok);
        assert_eq!(size(Ok((8 * GIB, 3 * GIB))).verdict, CheckVerdict::Warn);
        assert_eq!(size(Ok((8 * GIB, 100 * MIB))).verdict, CheckVerdict::Fail);
        assert_eq!(size(Err(Error::internal("no /proc"))).verdict, CheckVerdict::Warn);
    }

    #[test]
    fn a_balloon_states_if_it_reports_free_pages() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(reports_free_pages(&root.path().join("none")), None);
        let device = |name: &str, kind: &str, features: &str| {
            let dir = root.path().join(name);
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("device"), kind).unwrap();
            std::fs::write(dir.join("features"), features).unwrap();
        };
        device("virtio0", "0x0001\n", "1111111111\n");
        assert_eq!(reports_free_pages(root.path()), None, "a network card");
        device("virtio1", "0x0005\n", "0110000100\n");
        assert_eq!(reports_free_pages(root.path()), Some(false));
        device("virtio1", "0x0005\n", "0110010100\n");
        assert_eq!(reports_free_pages(root.path()), Some(true));
        assert_eq!(balloon(Some(true)).verdict, CheckVerdict::Warn);
        assert_eq!(balloon(None).verdict, CheckVerdict::Ok);
    }

    #[test]
    fn missing_huge_pages_have_a_remedy() {
        assert_eq!(chosen("always [madvise] never"), "madvise");
        let slot = SLOT_BYTES as u64;
        assert_eq!(huge_pages(Some("always"), Some("defer"), Ok(slot)).verdict, CheckVerdict::Ok);
        let off = huge_pages(Some("never"), None, Ok(0));
        assert!(off.verdict == CheckVerdict::Warn && off.meaning.contains("echo madvise"));
        let none = huge_pages(Some("madvise"), None, Ok(0));
        assert!(none.verdict == CheckVerdict::Warn && none.meaning.contains("compact_memory"));
    }
}
