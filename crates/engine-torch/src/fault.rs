//! Turns LibTorch's exception texts into errors of one line.
//!
//! An exception inside a module comes wrapped in a listing of the module's source. The cause is on
//! the last line that names an exception.

use base::{Error, ErrorKind};

/// Maximum number of bytes of a message. Some messages of LibTorch contain whole graphs.
const MESSAGE_BYTES_MAX: usize = 500;

/// Markers of a bug in LibTorch.
const ASSERTION: [&str; 2] = ["INTERNAL ASSERT FAILED", "Please report a bug"];
/// Markers of exhausted memory, the processor's or a device's ("CUDA out of memory",
/// "CUBLAS_STATUS_ALLOC_FAILED").
const MEMORY: [&str; 4] =
    ["std::bad_alloc", "can't allocate memory", "out of memory", "ALLOC_FAILED"];
/// Markers of a failed device. Wrong sizes are found before any work is sent to it.
const DEVICE: [&str; 6] =
    ["CUDA error", "CUDA driver error", "CUBLAS_STATUS_", "CUDNN_STATUS_", "CUFFT_", "cuDNN error"];
/// Texts of failures after which CUDA refuses every further call of the process
/// (`cudaGetErrorString`).
const LOST: [&str; 13] = [
    "an illegal memory access was encountered",
    "an illegal instruction was encountered",
    "device-side assert triggered",
    "unspecified launch failure",
    "misaligned address",
    "hardware stack error",
    "invalid program counter",
    "operation not supported on global/shared address space",
    "the launch timed out and was terminated",
    "uncorrectable ECC error encountered",
    "uncorrectable NVLink error detected",
    "Invalid access of peer GPU memory over nvlink",
    "an async error has occured in external entity outside of CUDA",
];
/// Markers of a module whose code names a device, for example because it was exported on a GPU. All
/// inputs are on the device of the model's settings, so no request can cause this.
const OTHER_DEVICE: [&str; 4] = [
    "PyTorch is not linked with support for",
    "with arguments from the 'CUDA' backend",
    "Cannot initialize CUDA without",
    "Expected all tensors to be on the same device",
];

/// Returns true if the exception says that this process cannot use its device any more.
pub(crate) fn loses_device(text: &str) -> bool {
    let is_cuda = ["CUDA error", "CUDA driver error"].iter().any(|marker| text.contains(marker));
    is_cuda && LOST.iter().any(|failure| text.contains(failure))
}

/// Returns the error for an exception's text.
pub(crate) fn error(text: &str) -> Error {
    let has = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    if has(&OTHER_DEVICE) {
        return Error::internal(format!(
            "the module uses a device other than `device` in its settings; export it on that device: {}",
            cause_line(text)
        ));
    }
    let kind = if has(&ASSERTION) {
        ErrorKind::Internal
    } else if has(&MEMORY) {
        ErrorKind::ResourceExhausted
    } else if has(&DEVICE) {
        ErrorKind::Internal
    } else {
        ErrorKind::InvalidArgument
    };
    Error::new(kind, cause_line(text))
}

/// Returns the line of an exception's text that states the cause, cut to [`MESSAGE_BYTES_MAX`].
fn cause_line(text: &str) -> String {
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    // One exception may wrap another: "RuntimeError: AssertionError: ...".
    let innermost =
        |line| std::iter::successors(after_exception(line), |rest| after_exception(rest)).last();
    let last_exception = lines().filter_map(innermost).next_back();
    let cause =
        last_exception.or_else(|| lines().next()).unwrap_or("LibTorch failed and does not say why");
    let end = cause.char_indices().map(|(at, _)| at).find(|&at| at >= MESSAGE_BYTES_MAX);
    cause[..end.unwrap_or(cause.len())].to_owned()
}

/// Returns the text after "RuntimeError: " or another exception's name at the start of a line.
fn after_exception(line: &str) -> Option<&str> {
    let (name, rest) = line.split_once(": ")?;
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_'));
    let is_exception = name.ends_with("Error") || name.ends_with("Exception");
    (is_name && is_exception && !rest.is_empty()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_exception_is_the_message() {
        let text = "The following operation failed in the TorchScript interpreter.\n\
            Traceback of TorchScript (most recent call last):\n  File \"x.py\", line 2, in forward\n\
            \x20   return self.a @ x\n           ~~~~~~~~ <--- HERE\n\
            RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)\n";
        let error = error(text);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.message(), "mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)");
    }

    #[test]
    fn device_faults_are_not_the_requests_fault() {
        for text in [
            "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.80 GiB",
            "CUDA error: out of memory",
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to \
             allocate 8589934592 bytes.",
        ] {
            assert_eq!(error(text).kind(), ErrorKind::ResourceExhausted, "{text}");
        }
        for text in [
            "CUDA error: an illegal memory access was encountered",
            "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
            "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb, m, n, k)`",
        ] {
            assert_eq!(error(text).kind(), ErrorKind::Internal, "{text}");
        }
    }

    #[test]
    fn failures_that_cuda_keeps_lose_the_device() {
        for text in [
            "CUDA error: an illegal memory access was encountered\nIt might be reported later",
            "RuntimeError: CUDA error: device-side assert triggered",
            "CUDA driver error: unspecified launch failure",
        ] {
            assert!(loses_device(text), "{text}");
        }
        for text in [
            "CUDA error: out of memory",
            "CUDA error: invalid configuration argument",
            "RuntimeError: misaligned address",
        ] {
            assert!(!loses_device(text), "{text}");
        }
    }

    #[test]
    fn a_module_for_another_device_is_not_the_requests_fault() {
        for text in [
            "RuntimeError: Could not run 'aten::empty.memory_format' with arguments from the 'CUDA' backend. This \
             could be because the operator doesn't exist for this backend",
            "RuntimeError: PyTorch is not linked with support for cuda devices",
            "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and \
             cpu!",
        ] {
            let error = error(text);
            assert_eq!(error.kind(), ErrorKind::Internal, "{text}");
            assert!(error.message().contains("`device`"), "{error}");
        }
    }

    #[test]
    fn other_texts_become_one_line_with_a_kind() {
        assert_eq!(error("\n  one\ntwo").message(), "one");
        assert_eq!(error("std::bad_alloc").kind(), ErrorKind::ResourceExhausted);
        assert_eq!(error("x INTERNAL ASSERT FAILED at y").kind(), ErrorKind::Internal);
        assert!(!error("").message().is_empty());
        assert!(error(&"ü".repeat(2000)).message().len() <= MESSAGE_BYTES_MAX + 1);
    }
}
