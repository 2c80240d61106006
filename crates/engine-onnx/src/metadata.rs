//! Free-form facts that a model carries.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::ptr::null_mut;

use base::Result;
use ort::sys;

use crate::api::{Handle, call, take_string};
use crate::runtime::Runtime;

/// Maximum custom entries that are read.
const ENTRIES_MAX: usize = 4096;

/// Returns the custom entries under their own names, and ONNX's own under names that begin with
/// "onnx.". Omits empty ones.
pub(crate) fn read(
    runtime: &Runtime,
    session: &Handle<sys::OrtSession>,
) -> Result<BTreeMap<String, String>> {
    let mut raw = null_mut();
    let allocator = runtime.allocator().as_ptr();
    // SAFETY: the session is alive, the out-pointer valid, the result owned.
    let metadata = unsafe {
        call!(Call, SessionGetModelMetadata(session.as_ptr(), &mut raw))?;
        Handle::own(raw)?
    };
    let mut entries = custom(runtime, &metadata)?;
    let api = ort::api();
    let fields = [
        ("onnx.producer", api.ModelMetadataGetProducerName),
        ("onnx.graph", api.ModelMetadataGetGraphName),
        ("onnx.domain", api.ModelMetadataGetDomain),
        ("onnx.description", api.ModelMetadataGetDescription),
        ("onnx.graph_description", api.ModelMetadataGetGraphDescription),
    ];
    for (key, get) in fields {
        let mut text = null_mut();
        // SAFETY: the metadata is alive; the string comes from the allocator passed in and is ours.
        let value = unsafe {
            crate::api::check(
                api,
                get(metadata.as_ptr(), allocator, &mut text),
                crate::api::CallPhase::Call,
            )?;
            take_string(runtime.allocator(), text)?
        };
        if !value.is_empty() {
            entries.insert(key.to_owned(), value);
        }
    }
    let mut version = 0i64;
    // SAFETY: the metadata is alive, the out-pointer valid.
    unsafe { call!(Call, ModelMetadataGetVersion(metadata.as_ptr(), &mut version))? };
    if (1..i64::MAX).contains(&version) {
        entries.insert("onnx.model_version".to_owned(), version.to_string());
    }
    Ok(entries)
}

/// Returns the custom entries of a model's metadata, at most [`ENTRIES_MAX`].
fn custom(
    runtime: &Runtime,
    metadata: &Handle<sys::OrtModelMetadata>,
) -> Result<BTreeMap<String, String>> {
    let mut keys = null_mut::<*mut c_char>();
    let mut count = 0i64;
    let allocator = runtime.allocator();
    // SAFETY: the metadata is alive, the out-pointers valid; the array and its strings come from
    // the allocator.
    unsafe {
        call!(
            Call,
            ModelMetadataGetCustomMetadataMapKeys(
                metadata.as_ptr(),
                allocator.as_ptr(),
                &mut keys,
                &mut count
            )
        )?;
    }
    let mut entries = BTreeMap::new();
    if keys.is_null() {
        return Ok(entries);
    }
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the array has `count` strings of the allocator; each is read, used and freed
        // once.
        unsafe {
            let key = *keys.add(index);
            if index < ENTRIES_MAX {
                let mut value = null_mut();
                call!(
                    Call,
                    ModelMetadataLookupCustomMetadataMap(
                        metadata.as_ptr(),
                        allocator.as_ptr(),
                        key,
                        &mut value
                    )
                )?;
                let name = CStr::from_ptr(key).to_string_lossy().into_owned();
                entries.insert(name, take_string(allocator, value)?);
            }
            call!(Call, AllocatorFree(allocator.as_ptr(), key.cast()))?;
        }
    }
    // SAFETY: the array itself comes from the allocator and is not used again.
    unsafe { call!(Call, AllocatorFree(allocator.as_ptr(), keys.cast()))? };
    Ok(entries)
}
