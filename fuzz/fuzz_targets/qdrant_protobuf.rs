#![no_main]

libfuzzer_sys::fuzz_target!(init: millpond_fuzz::start(), |data: &[u8]| {
    millpond_fuzz::run(millpond_fuzz::qdrant_protobuf, data);
});
