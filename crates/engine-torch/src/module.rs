//! Handles of the shim's objects.

use std::ptr::{NonNull, null_mut};

use base::{Error, Result};

use crate::api::{
    RawAnswer, RawArgument, RawDescription, RawModule, RawTensor, RawValue, RawView, ShimLibrary,
    text,
};

/// A LibTorch module.
pub(crate) struct TorchModule {
    raw: NonNull<RawModule>,
    library: &'static ShimLibrary,
}

// SAFETY: a module may be used and dropped on any thread. Calls that take it by a shared reference
// only read it, which LibTorch allows on many threads at once. The exception is a run of a module
// with a state, which the session guards.
unsafe impl Send for TorchModule {}
// SAFETY: as above.
unsafe impl Sync for TorchModule {}

/// Facts about a module.
pub(crate) struct ModuleDescription {
    /// Used bytes of the arena.
    pub(crate) arena_used: usize,
    /// True if a run leaves state in the module.
    pub(crate) stateful: bool,
    /// Arguments of forward.
    pub(crate) arguments: Vec<ArgumentDescription>,
    /// Names of its outputs, if the module's types state them.
    pub(crate) results: Option<Vec<String>>,
    /// Declaration of forward.
    pub(crate) declaration: String,
}

/// One argument of forward.
pub(crate) struct ArgumentDescription {
    pub(crate) name: String,
    /// Type in TorchScript's syntax.
    pub(crate) type_text: String,
    /// A kind constant of `api`.
    pub(crate) kind: i32,
    /// True if it has a default.
    pub(crate) optional: bool,
}

impl TorchModule {
    /// Takes ownership of a call's result.
    ///
    /// # Safety
    /// `raw` is null or a module that the caller owns.
    pub(crate) unsafe fn own(
        library: &'static ShimLibrary,
        raw: *mut RawModule,
    ) -> Result<TorchModule> {
        let raw = NonNull::new(raw).ok_or_else(|| Error::internal("LibTorch gave no module"))?;
        Ok(TorchModule { raw, library })
    }

    /// Reads the module's description from the shim.
    pub(crate) fn describe(&self) -> Result<ModuleDescription> {
        let call = &self.library.call;
        let mut raw = RawDescription {
            arena_used: 0,
            stateful: 0,
            arguments: 0,
            results: -1,
            declaration: std::ptr::null(),
        };
        // SAFETY: the module is alive and owns the text; the out-pointer is valid.
        let declaration = unsafe {
            (call.mpt_module_describe)(self.raw.as_ptr(), &mut raw);
            text(raw.declaration)
        };
        let arguments =
            (0..raw.arguments).map(|index| self.argument(index)).collect::<Result<_>>()?;
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

    /// Returns the description of the argument number `index` of forward.
    fn argument(&self, index: i32) -> Result<ArgumentDescription> {
        let mut raw = RawArgument {
            name: std::ptr::null(),
            type_text: std::ptr::null(),
            kind: 0,
            optional: 0,
        };
        // SAFETY: the module is alive and owns the texts; the out-pointer is valid.
        unsafe {
            let code = (self.library.call.mpt_module_argument)(self.raw.as_ptr(), index, &mut raw);
            self.library.check(code)?;
            let name = text(raw.name);
            let type_text = text(raw.type_text);
            Ok(ArgumentDescription { name, type_text, kind: raw.kind, optional: raw.optional != 0 })
        }
    }

    /// Returns true if CUDA has failed for the rest of the process.
    pub(crate) fn has_lost_its_device(&self) -> bool {
        self.library.has_lost_its_device()
    }

    /// Returns the same module with a state of its own.
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
    /// `values` has one entry for each argument of forward, of its kind. Each points to as many
    /// bytes as its type and shape need, aligned for the type, and to as many sizes as its rank.
    /// All stay alive through the call.
    pub(crate) unsafe fn run(&self, values: &[RawValue], threads: usize) -> Result<RunResults> {
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        let mut raw = null_mut();
        // SAFETY: the module is alive, the values are as the caller promises, the out-pointer is
        // valid.
        let code = unsafe {
            let module = self.raw.as_ptr();
            let count = values.len();
            let values = values.as_ptr();
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

/// Results of a run. Used by the thread that ran.
pub(crate) struct RunResults {
    raw: NonNull<RawAnswer>,
    library: &'static ShimLibrary,
}

impl RunResults {
    /// Returns the number of tensors.
    pub(crate) fn len(&self) -> usize {
        // SAFETY: the answer is alive.
        unsafe { (self.library.call.mpt_answer_count)(self.raw.as_ptr()) }
    }

    /// Returns a view of tensor `index`, valid while the results live. `None` past the last.
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

    /// Returns tensor `index`, which outlives the results.
    pub(crate) fn take(&self, index: usize) -> Result<TorchTensor> {
        // SAFETY: the answer is alive; the shim checks the index. The returned tensor is ours.
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

/// A LibTorch tensor.
pub(crate) struct TorchTensor {
    raw: NonNull<RawTensor>,
    library: &'static ShimLibrary,
}

// SAFETY: LibTorch counts the holders of a tensor atomically; the last one frees it, on any thread.
unsafe impl Send for TorchTensor {}
// SAFETY: no call uses it through a shared reference.
unsafe impl Sync for TorchTensor {}

impl TorchTensor {
    /// Takes ownership of a call's result.
    ///
    /// # Safety
    /// `raw` is null or a tensor that the caller owns.
    pub(crate) unsafe fn own(
        library: &'static ShimLibrary,
        raw: *mut RawTensor,
    ) -> Result<TorchTensor> {
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
