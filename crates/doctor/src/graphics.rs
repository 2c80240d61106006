//! The GPU, which is optional.

use base::ErrorKind;
use gpu::GpuOptions;

use crate::Check;

/// Opens the GPU as `serve --gpu auto` does: driver, device, compiled kernels.
pub(crate) fn check(options: &GpuOptions) -> Check {
    judge(gpu::Gpu::open(options).map(|gpu| gpu.name().to_owned()))
}

/// Judges the outcome of opening the GPU. A missing GPU is fine. A GPU that cannot be used is a
/// warning, since it may be intended for use.
fn judge(opened: base::Result<String>) -> Check {
    match opened {
        Ok(name) => Check::ok(
            "GPU",
            name,
            "With `serve --gpu auto`, the GPU compares all points of a large segment.",
        ),
        Err(error)
            if error.kind() == ErrorKind::NotFound && !error.message().contains("libnvrtc") =>
        {
            Check::ok("GPU", "none", format!("Everything is done by the processor: {error}."))
        }
        Err(error) => Check::warn(
            "GPU",
            "not usable",
            format!("Everything is done by the processor: {error}."),
        ),
    }
}

#[cfg(test)]
mod tests {
    use base::Error;

    use super::*;
    use crate::CheckVerdict;

    #[test]
    fn only_a_gpu_that_cannot_be_used_is_a_warning() {
        assert_eq!(judge(Ok("a GPU".to_owned())).verdict, CheckVerdict::Ok);
        let none = judge(Err(Error::not_found("NVIDIA's driver (libcuda) was not found")));
        assert_eq!((none.verdict, none.found.as_str()), (CheckVerdict::Ok, "none"));
        assert_eq!(
            judge(Err(Error::not_found("libnvrtc was not found"))).verdict,
            CheckVerdict::Warn
        );
        assert_eq!(judge(Err(Error::internal("the driver refuses"))).verdict, CheckVerdict::Warn);
    }
}
