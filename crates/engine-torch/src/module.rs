//! Handles of the shim's objects.

use std::ptr::{NonNull, null_mut};

use base::{Error, Result};

use crate::api::{
    RawAnswer, RawArgument, RawDescription, RawModule, RawTensor, RawValue, RawView, ShimLibrary, text,
};

/// A module of LibTorch's.
pub(crate) struct TorchModule {
    raw: NonNull<RawModule>,
    library: &'static ShimLibrary,
}

// SAFETY: a module may be used and dropped on any thread; calls that take it by a shared reference only read it, which
// LibTorch allows on many threads at once. The one that does not (a run of a module with a state) is guarded by the
// session.
unsafe impl Send for TorchModule {}
// SAFETY: as above.
unsafe impl Sync for TorchModule {}

/// What a module is like.
pub(crate) struct ModuleDescription {
    /// Bytes of the arena that it uses.
    pub(crate) arena_used: usize,
    /// A run leaves something behind.
    pub(crate) stateful: bool,
    /// What forward takes.
    pub(crate) arguments: Vec<ArgumentDescription>,
    /// What its outputs are called, where the module's types say.
    pub(crate) results: Option<Vec<String>>,
    /// The declaration of forward.
    pub(crate) declaration: String,
}

/// One argument of forward.
pub(crate) struct ArgumentDescription {
    /// Its name.
    pub(crate) name: String,
    /// Its type, as TorchScript writes it.
    pub(crate) type_text: String,
    /// One of the kinds of `api`.
    pub(crate) kind: i32,
    /// It has a default.
    pub(crate) optional: bool,
}

impl TorchModule {
    /// Takes over what a successful call gave.
    ///
    /// # Safety
    /// `raw` is null or a module that the caller owns.
    pub(crate) unsafe fn own(library: &'static ShimLibrary, raw: *mut RawModule) -> Result<TorchModule> {
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("LibTorch gave no module"))?;
        Ok(TorchModule { raw, library })
    }

    /// What it is like.
    pub(crate) fn describe(&self) -> Result<ModuleDescription> {
        let call = &self.library.call;
        let mut raw = RawDescription {
            arena_used: 0,
            stateful: 0,
            arguments: 0,
            results: -1,
            declaration: std::ptr::null(),
        };
        // SAFETY: the module is alive and the out-pointer valid; the text lives as long as the module.
        let declaration = unsafe {
            (call.mpt_module_describe)(self.raw.as_ptr(), &mut raw);
            text(raw.declaration)
        };
        let arguments = (0..raw.arguments).map(|index| self.argument(index)).collect::<Result<_>>()?;
        let name = |index| {
            // SAFETY: the module is alive; the text is NUL-terminated and lives as long.
            unsafe { text((call.mpt_module_result)(self.raw.as_ptr(), index)) }
        };
        Ok(ModuleDescription {
            arena_used: raw.arena_used,
            stateful: raw.stateful != 0,
            arguments,
            results: (raw.results >= 0).then(|| (0..raw.results).map(name).collect()),
            declaration,
        })
    }

    fn argument(&self, index: i32) -> Result<ArgumentDescription> {
        let mut raw =
            RawArgument { name: std::ptr::null(), type_text: std::ptr::null(), kind: 0, optional: 0 };
        // SAFETY: the module is alive and the out-pointer valid; the texts live as long as the module.
        unsafe {
            let code = (self.library.call.mpt_module_argument)(self.raw.as_ptr(), index, &mut raw);
            self.library.check(code)?;
            let (name, type_text) = (text(raw.name), text(raw.type_text));
            Ok(ArgumentDescription { name, type_text, kind: raw.kind, optional: raw.optional != 0 })
        }
    }

    /// The same module with a state of its own.
    pub(crate) fn fork(&self) -> Result<TorchModule> {
        let mut raw = null_mut();
        // SAFETY: the module is alive and the out-pointer valid; what it gets is ours.
        unsafe {
            self.library.check((self.library.call.mpt_module_fork)(self.raw.as_ptr(), &mut raw))?;
            TorchModule::own(self.library, raw)
        }
    }

    /// Runs forward.
    ///
    /// # Safety
    /// There is a value for each argument of forward, of its kind; each points to as many bytes as its type and shape
    /// take, aligned for the type, and to as many sizes as its rank, alive through the call.
    pub(crate) unsafe fn run(&self, values: &[RawValue], threads: usize) -> Result<RunResults> {
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        let mut raw = null_mut();
        // SAFETY: the module is alive, the values are as the caller promises, the out-pointer is valid.
        let code = unsafe {
            let (module, values, count) = (self.raw.as_ptr(), values.as_ptr(), values.len());
            (self.library.call.mpt_run)(module, values, count, threads, &mut raw)
        };
        self.library.check(code)?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("LibTorch gave no answer"))?;
        Ok(RunResults { raw, library: self.library })
    }
}

impl Drop for TorchModule {
    fn drop(&mut self) {
        // SAFETY: the module is ours, and this is its last use.
        unsafe { (self.library.call.mpt_module_drop)(self.raw.as_ptr()) }
    }
}

/// What a run gave. Used by the thread that ran.
pub(crate) struct RunResults {
    raw: NonNull<RawAnswer>,
    library: &'static ShimLibrary,
}

impl RunResults {
    /// How many tensors there are.
    pub(crate) fn len(&self) -> usize {
        // SAFETY: the answer is alive.
        unsafe { (self.library.call.mpt_answer_count)(self.raw.as_ptr()) }
    }

    /// Tensor number `index`, as long as the answer lives. `None` past the last.
    pub(crate) fn view(&self, index: usize) -> Option<RawView> {
        if index >= self.len() {
            return None;
        }
        let mut view = RawView {
            name: std::ptr::null(),
            data: std::ptr::null(),
            bytes: 0,
            dims: std::ptr::null(),
            rank: 0,
            dtype: -1,
        };
        // SAFETY: the answer is alive, the index below its count, the out-pointer valid.
        unsafe { (self.library.call.mpt_answer_view)(self.raw.as_ptr(), index, &mut view) };
        Some(view)
    }

    /// Tensor number `index`, which lives on after the answer.
    pub(crate) fn take(&self, index: usize) -> Result<TorchTensor> {
        // SAFETY: the answer is alive; the shim checks the index. What it gives is ours.
        unsafe {
            let raw = (self.library.call.mpt_answer_take)(self.raw.as_ptr(), index);
            TorchTensor::own(self.library, raw)
        }
    }
}

impl Drop for RunResults {
    fn drop(&mut self) {
        // SAFETY: the answer is ours, and this is its last use.
        unsafe { (self.library.call.mpt_answer_drop)(self.raw.as_ptr()) }
    }
}

/// One tensor of LibTorch's.
pub(crate) struct TorchTensor {
    raw: NonNull<RawTensor>,
    library: &'static ShimLibrary,
}

// SAFETY: LibTorch counts the holders of a tensor atomically and frees it on whichever thread is last.
unsafe impl Send for TorchTensor {}
// SAFETY: nothing is ever asked of it by a shared reference.
unsafe impl Sync for TorchTensor {}

impl TorchTensor {
    /// Takes over what a call gave.
    ///
    /// # Safety
    /// `raw` is null or a tensor that the caller owns.
    pub(crate) unsafe fn own(library: &'static ShimLibrary, raw: *mut RawTensor) -> Result<TorchTensor> {
        let raw = NonNull::new(raw).ok_or_else(|| Error::exhausted("no memory for an answer"))?;
        Ok(TorchTensor { raw, library })
    }
}

impl Drop for TorchTensor {
    fn drop(&mut self) {
        // SAFETY: the tensor is ours, and this is its last use.
        unsafe { (self.library.call.mpt_tensor_drop)(self.raw.as_ptr()) }
    }
}
