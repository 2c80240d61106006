//! A medium that fails on request, for tests of everything that stores data.
//!
//! It wraps another medium and tracks the bytes that would remain after a loss of power. Persisted
//! bytes remain as they were then. Of the others, each sector of 512 bytes may remain. Crashing at
//! the n-th operation for every n, and reopening what remains, tests all orders of events.

mod model;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{Error, Result};

use crate::buffered::BufferedReader;
use crate::directory::{check_write, refusal};
use crate::medium::{Medium, MediumKind, Reader, ReaderOptions, Sealed, Space, Writer};
use crate::names;
use crate::page::PAGE_BYTES;

use model::{Change, Draw, FileSystemModel};

/// Fault of a page that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFault {
    /// The disk reports an error.
    Error,
    /// Fewer bytes arrive than requested.
    Short,
    /// The second half is still zeros, as before the page was written.
    Torn,
    /// One bit is flipped.
    Flip,
}

/// Faults and their times. The default has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Seed of all random choices.
    pub seed: u64,
    /// The power fails during this changing operation, counted from 1. It and all later ones fail.
    pub crash_at: Option<u64>,
    /// Bytes that fit on the medium.
    pub space: Option<u64>,
    /// This write, counted from 1, fails like a write to a disk, and only a part is written.
    pub write_error_at: Option<u64>,
    /// This persist of a file, counted from 1, fails like that of a disk. The bytes that it should
    /// save may be lost.
    pub persist_error_at: Option<u64>,
    /// Pages of 1000 that cannot be read, always the same ones.
    pub read_errors: u16,
    /// Pages of 1000 that are read only in part.
    pub short_reads: u16,
    /// Pages of 1000 that are torn.
    pub torn_pages: u16,
    /// Pages of 1000 with a flipped bit.
    pub bit_flips: u16,
    /// Pages that are always damaged: name of the file, number of its page, fault.
    pub damage: Vec<(String, u64, ReadFault)>,
    /// Files that cannot be opened: beginning of the name, error.
    pub refused: Vec<(String, Error)>,
    /// True if completions come in an order drawn by the seed.
    pub reorder: bool,
}

/// Another medium, with faults.
#[derive(Clone, Debug)]
pub struct FaultMedium {
    shared: Arc<FaultState>,
}

#[derive(Debug)]
struct FaultState {
    inner: Arc<dyn Medium>,
    plan: FaultPlan,
    /// Bytes that fit on the medium, or `u64::MAX` if there is no limit.
    space: AtomicU64,
    model: Mutex<FileSystemModel>,
    hook: Mutex<Option<CreateHook>>,
}

/// Work before a file is created.
struct CreateHook {
    prefix: &'static str,
    run: Box<dyn FnOnce() + Send>,
}

impl std::fmt::Debug for CreateHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreateHook").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl FaultState {
    fn model(&self) -> MutexGuard<'_, FileSystemModel> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn space(&self) -> u64 {
        self.space.load(Ordering::SeqCst)
    }

    fn hook(&self) -> MutexGuard<'_, Option<CreateHook>> {
        self.hook.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a changing operation. Returns the crash's error if this operation crashes or comes
    /// later.
    fn step(&self, model: &mut FileSystemModel) -> Result<()> {
        model.operations += 1;
        model.crashed |= self.plan.crash_at.is_some_and(|at| model.operations >= at);
        alive(model)
    }
}

fn alive(model: &FileSystemModel) -> Result<()> {
    if model.crashed { Err(Error::unavailable("the power has failed")) } else { Ok(()) }
}

impl FaultMedium {
    /// Wraps `inner` with the faults of `plan`. The contents of `inner` count as durable.
    ///
    /// # Errors
    /// The error of `inner` if its files cannot be read.
    pub fn new(inner: Arc<dyn Medium>, plan: FaultPlan) -> Result<FaultMedium> {
        let mut model = FileSystemModel::default();
        for (name, _) in inner.list()? {
            model.adopt(&name, inner.load(&name)?);
        }
        let space = AtomicU64::new(plan.space.unwrap_or(u64::MAX));
        let model = Mutex::new(model);
        let hook = Mutex::default();
        Ok(FaultMedium { shared: Arc::new(FaultState { inner, plan, space, model, hook }) })
    }

    /// Returns the number of changing operations so far. A test of every moment crashes at each
    /// number up to this one.
    pub fn operations(&self) -> u64 {
        self.shared.model().operations
    }

    /// Sets the bytes that fit on the medium. `None` means no limit.
    pub fn set_space(&self, bytes: Option<u64>) {
        self.shared.space.store(bytes.unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    /// Runs `hook` once, before the next file whose name begins with `prefix` is created. Replaces
    /// a hook that has not run.
    pub fn before_create(&self, prefix: &'static str, hook: impl FnOnce() + Send + 'static) {
        *self.shared.hook() = Some(CreateHook { prefix, run: Box::new(hook) });
    }

    /// Returns true if the power has failed.
    pub fn crashed(&self) -> bool {
        self.shared.model().crashed
    }

    /// Writes to `target`, an empty medium, the bytes that remain if the power fails now, with
    /// random choices by `seed`.
    ///
    /// # Errors
    /// The error of `target`.
    pub fn remains(&self, target: &dyn Medium, seed: u64) -> Result<()> {
        let files = self.shared.model().remains(seed ^ self.shared.plan.seed);
        for (name, bytes) in files {
            let mut writer = target.create(&name)?;
            writer.append(&bytes)?;
            writer.persist()?;
        }
        target.persist_names()
    }

    fn writer(&self, name: &str, inner: Box<dyn Writer>) -> Result<Box<dyn Writer>> {
        let file = self.shared.model().file(name).ok_or_else(|| names::missing(name))?;
        Ok(Box::new(FaultWriter {
            shared: self.shared.clone(),
            inner,
            file,
            name: name.to_owned(),
            failed: None,
        }))
    }
}

impl Medium for FaultMedium {
    fn kind(&self) -> MediumKind {
        self.shared.inner.kind()
    }

    fn create(&self, name: &str) -> Result<Box<dyn Writer>> {
        let hook = self.shared.hook().take_if(|hook| name.starts_with(hook.prefix));
        if let Some(hook) = hook {
            (hook.run)();
        }
        let mut model = self.shared.model();
        alive(&model)?;
        let inner = self.shared.inner.create(name)?;
        model.create(name);
        self.shared.step(&mut model)?;
        drop(model);
        self.writer(name, inner)
    }

    fn reopen(&self, name: &str) -> Result<Box<dyn Writer>> {
        alive(&self.shared.model())?;
        self.writer(name, self.shared.inner.reopen(name)?)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Sealed>> {
        alive(&self.shared.model())?;
        let refused = &self.shared.plan.refused;
        if let Some((_, error)) = refused.iter().find(|(prefix, _)| name.starts_with(prefix)) {
            return Err(error.clone());
        }
        let inner = self.shared.inner.open(name)?;
        let id = names::next_id();
        let name = name.to_owned();
        Ok(Arc::new(FaultSealed { id, inner, name, shared: self.shared.clone() }))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let mut model = self.shared.model();
        alive(&model)?;
        self.shared.inner.remove(name)?;
        model.remove(name);
        self.shared.step(&mut model)
    }

    fn list(&self) -> Result<Vec<(String, u64)>> {
        alive(&self.shared.model())?;
        self.shared.inner.list()
    }

    fn persist_names(&self) -> Result<()> {
        let mut model = self.shared.model();
        self.shared.step(&mut model)?;
        self.shared.inner.persist_names()?;
        model.persist_names();
        Ok(())
    }

    fn space(&self) -> Result<Option<Space>> {
        let total = self.shared.space();
        let model = self.shared.model();
        let free = total.saturating_sub(model.live_bytes());
        Ok((total < u64::MAX).then_some(Space { free, total, files_free: None }))
    }

    fn reader(&self, options: ReaderOptions) -> Result<Box<dyn Reader>> {
        let mut draw = self.shared.plan.reorder.then_some(Draw(self.shared.plan.seed));
        let pick = move |queued| draw.as_mut().map_or(0, |draw| draw.next() as usize % queued);
        Ok(Box::new(BufferedReader::new(options, Box::new(pick))?))
    }
}

struct FaultWriter {
    shared: Arc<FaultState>,
    inner: Box<dyn Writer>,
    file: u64,
    name: String,
    failed: Option<Error>,
}

impl FaultWriter {
    fn check_usable(&self) -> Result<()> {
        self.failed.as_ref().map_or(Ok(()), |error| Err(refusal(&self.name, error)))
    }

    /// Returns how many of `bytes` at `offset` fit on the medium.
    fn fitting(&self, model: &FileSystemModel, offset: u64, bytes: usize) -> usize {
        let free = self.shared.space().saturating_sub(model.live_bytes());
        let end = self.inner.bytes().saturating_add(free);
        bytes.min(usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX))
    }
}

impl Writer for FaultWriter {
    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_usable()?;
        check_write(&self.name, self.inner.bytes(), offset, bytes.len())?;
        let shared = self.shared.clone();
        let mut model = shared.model();
        alive(&model)?;
        model.writes += 1;
        let fails = shared.plan.write_error_at == Some(model.writes);
        let fitting =
            if fails { bytes.len() / 2 } else { self.fitting(&model, offset, bytes.len()) };
        let written = &bytes[..fitting];
        model.change(self.file, Change::Write(offset, written.to_vec()));
        self.inner.write_at(offset, written)?;
        shared.step(&mut model)?;
        if fails {
            return Err(Error::data_loss(format!("{}: the disk failed (EIO)", self.name)));
        }
        if fitting < bytes.len() {
            return Err(Error::storage_full(format!("{}: no space left on the medium", self.name)));
        }
        Ok(())
    }

    fn truncate(&mut self, bytes: u64) -> Result<()> {
        self.check_usable()?;
        let shared = self.shared.clone();
        let mut model = shared.model();
        alive(&model)?;
        self.inner.truncate(bytes)?;
        model.change(self.file, Change::Truncate(bytes));
        shared.step(&mut model)
    }

    fn persist(&mut self) -> Result<()> {
        self.check_usable()?;
        let shared = self.shared.clone();
        let mut model = shared.model();
        shared.step(&mut model)?;
        model.persists += 1;
        if shared.plan.persist_error_at == Some(model.persists) {
            let seed = shared.plan.seed;
            model.lose(self.file, seed);
            let error = Error::data_loss(format!("{}: the disk failed (EIO)", self.name));
            self.failed = Some(error.clone());
            return Err(error);
        }
        self.inner.persist()?;
        model.persist(self.file);
        Ok(())
    }
}

#[derive(Debug)]
struct FaultSealed {
    id: u64,
    inner: Arc<dyn Sealed>,
    name: String,
    shared: Arc<FaultState>,
}

impl FaultSealed {
    /// Returns the fault of a page: a planned one, or one drawn by the seed, the file and the page.
    fn fault(&self, page: u64) -> Option<ReadFault> {
        let plan = &self.shared.plan;
        let certain = plan.damage.iter().find(|(name, at, _)| *name == self.name && *at == page);
        if let Some((_, _, fault)) = certain {
            return Some(*fault);
        }
        let name = u64::from(crc32c::crc32c(self.name.as_bytes()));
        let mut drawn = model::mix(plan.seed ^ (name << 32) ^ page) % 1000;
        for (rate, fault) in [
            (plan.read_errors, ReadFault::Error),
            (plan.short_reads, ReadFault::Short),
            (plan.torn_pages, ReadFault::Torn),
            (plan.bit_flips, ReadFault::Flip),
        ] {
            match drawn.checked_sub(u64::from(rate)) {
                None => return Some(fault),
                Some(rest) => drawn = rest,
            }
        }
        None
    }
}

impl Sealed for FaultSealed {
    fn id(&self) -> u64 {
        self.id
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        alive(&self.shared.model())?;
        self.inner.read_at(offset, buffer)?;
        let size = PAGE_BYTES as u64;
        let end = offset + buffer.len() as u64;
        for page in offset / size..end.div_ceil(size) {
            // The buffer's part of this page, and the part of that in the page's second half.
            let within = |at: u64| (at.clamp(offset, end) - offset) as usize;
            let (start, half, stop) = (page * size, page * size + size / 2, (page + 1) * size);
            match self.fault(page) {
                Some(ReadFault::Error) => {
                    return Err(Error::data_loss(format!(
                        "{}: the disk failed (EIO) at page {page}",
                        self.name
                    )));
                }
                Some(ReadFault::Short) => {
                    return Err(Error::data_loss(format!("{}: page {page} came short", self.name)));
                }
                Some(ReadFault::Torn) => buffer[within(half)..within(stop)].fill(0),
                Some(ReadFault::Flip) => {
                    let bit = model::mix(self.shared.plan.seed ^ page) % (size * 8);
                    let at = start + bit / 8;
                    if (offset..end).contains(&at) {
                        buffer[within(at)] ^= 1 << (bit % 8);
                    }
                }
                None => {}
            }
        }
        Ok(())
    }
}
