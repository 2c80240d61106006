//! Writes `fuzz/seeds/TARGET/*`: small complete inputs from the crates' own encoders, the clips
//! of the audio tests, and SavedModels (`make saved-models`).

use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{DType, Dim, NamedTensor, Tensor};
use bytes::Bytes;
use cluster::{EntryBody, Epoch, LogEntry, WriterId};
use cluster_log::Batch;
use cluster_log::codec::encode_entry;
use coarse::{CoarseHeader, CoarseKind, Metric};
use engine_onnx::publish::build::{ModelBuilder, Node};
use memory::{PoolConfig, SlotPool};
use os::Rate;
use protocol::qdrant as pb;
use protocol::{Message, oip, tfs};
use search::deletes::{Deletes, DeletesFile};
use search::ingest::{Op, PointRef};
use search::segment::{RowMapBuilder, SegmentIds, SegmentSettings, VectorEncoding};
use storage::log::Log;
use storage::page::Packer;
use storage::superblock::{Section, Superblock};
use storage::{DramMedium, Medium};

/// Files of keys.
const KEY_FILES: [(&str, &str); 3] = [
    (
        "all_settings",
        "[[keys]]\nname = \"a\"\nhash = \"blake3:0101010101010101010101010101010101010101010101010101010101010101\"\n\
         role = \"infer\"\nmodels = [\"rank*\", \"*\"]\ncollections = []\nrequests-per-second = 0.5\n\
         cpu-seconds-per-minute = 1e3\n",
    ),
    (
        "same_name",
        "[[keys]]\nname = \"a\"\nhash = \"0101010101010101010101010101010101010101010101010101010101010101\"\nrole = \"read\"\n\
         [[keys]]\nname = \"a\"\nhash = \"0201010101010101010101010101010101010101010101010101010101010101\"\nrole = \"admin\"\n",
    ),
    ("bad_hash", "[[keys]]\nname = \"a\"\nhash = \"blake3:12\"\nrole = \"write\"\n"),
];

/// Tokens, and claims of tokens.
const KEY_TOKENS: [(&str, &str); 4] = [
    ("global", "{\"access\":\"r\",\"exp\":4000000000,\"nbf\":1,\"sub\":\"team\"}"),
    (
        "collections",
        "{\"access\":[{\"collection\":\"a\",\"access\":\"r\"},{\"collection\":\"b\",\"access\":\"rw\"}]}",
    ),
    (
        "value_exists",
        "{\"value_exists\":{\"collection\":\"u\",\"matches\":[{\"key\":\"k\",\"value\":1}]}}",
    ),
    (
        "unsigned",
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJhY2Nlc3MiOiJtIn0.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds")
}

fn seed(target: &str, name: &str, bytes: impl AsRef<[u8]>) {
    let folder = root().join(target);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(name), bytes).unwrap();
}

/// Returns `bytes` behind the bytes that select the target's action.
fn chosen(choice: &[u8], bytes: &[u8]) -> Vec<u8> {
    [choice, bytes].concat()
}

fn main() {
    protocols();
    qdrant();
    models();
    saved_models();
    images();
    fingerprints();
    sounds();
    templates();
    storage_files();
    segment_parts();
    cluster_bytes();
    settings();
}

fn cluster_bytes() {
    let operations =
        [r#"{"delete":{"points":[1]}}"#, "", r#"{"upsert":{"points":[{"id":1,"vector":[1]}]}}"#];
    let operations: Vec<Bytes> = operations.iter().map(|text| Bytes::from(*text)).collect();
    let bodies = [
        ("fence", EntryBody::Fence),
        ("empty", EntryBody::Writes(Batch::from(Vec::new()))),
        ("writes", EntryBody::Writes(Batch::from(operations))),
    ];
    for (name, body) in bodies {
        let entry = LogEntry { epoch: Epoch(7), writer: WriterId(1 << 100), body };
        seed("cluster_log_entry", name, encode_entry(&entry).unwrap());
    }
    seed("cluster_log_entry", "floor", "000000000000001f-0000000000000007");

    let node = r#"{"name":"a","address":"127.0.0.1:8501","roles":["root","search"],"weight":2,"build":"1","serving":{"id":[0,3]}}"#;
    let lines = format!(
        "\x01millpond/c/nodes/a\t{node}\nmillpond/c/owners/id/0003\t{{\"node\":\"a\"}}\nmillpond/c/owners/id/3\t{{}}"
    );
    seed("cluster_etcd", "keys", lines);
    let answers = [
        (
            0,
            "range",
            r#"{"header":{"revision":"9"},"kvs":[{"key":"bWlsbHBvbmQvYy9vd25lcnMvaWQvMDAwMw==","create_revision":"5","value":"eyJub2RlIjoiYSJ9","lease":"7587870"}],"more":true,"count":"1"}"#,
        ),
        (0, "lease", r#"{"header":{"revision":"3"},"ID":"1418812106508896773","TTL":"10"}"#),
        (
            0,
            "keep_alive",
            "{\"result\":{\"ID\":\"7\",\"TTL\":\"10\"}}\n{\"error\":{\"grpc_code\":14}}",
        ),
        (0, "transaction", r#"{"header":{"revision":"4"},"succeeded":true}"#),
        (8, "refusal", r#"{"error":"gone","message":"gone","code":5}"#),
        (2, "plain", "CommonName of client sending a request is ignored"),
    ];
    for (choice, name, body) in answers {
        seed("cluster_etcd", name, chosen(&[choice], body.as_bytes()));
    }

    let read = r#"{"shards":{"3":{"status":200,"body":{"result":{"count": 2},"status":"ok","time":0.1}},"10":{"status":422,"body":{"status":{"error":"Validation error in x"},"time":0}},"4":{"status":503,"body":{"error":"behind"}},"5":{"status":200,"body":{}}},"rows":{"3":7}}"#;
    seed("cluster_answer", "read", chosen(&[0], read.as_bytes()));
    seed("cluster_answer", "made", chosen(&[0], br#"{"entry":12}"#));
    seed("cluster_answer", "elsewhere", chosen(&[5], br#"{"owner":"b"}"#));
    seed("cluster_answer", "not_made", chosen(&[9], br#"{"made":false,"error":"full"}"#));

    let vectors = r#"{"vectors":{"size":4,"distance":"Cosine"}}"#;
    let plain = format!(r#"{{"name":"c","id":"0195a","shards":8,"copies":2,"create":{vectors}}}"#);
    seed("cluster_record", "plain", &plain);
    let images = plain.replacen('{', r#"{"images":{"kind":"photo","model":"m"},"#, 1);
    seed("cluster_record", "images", images);
    cluster_backups(&plain.replace("\"shards\":8", "\"shards\":1"));
}

/// Writes the seeds of backups. `record` is the record of a collection with one shard.
fn cluster_backups(record: &str) {
    let changes =
        r#"{"payload_schema":{"f":{"data_type":"keyword","params":null}},"metadata":{"a":null}}"#;
    let part = r#"{"entries":1,"bytes":70,"blake3":"00"}"#;
    let shard = format!(r#"{{"snapshot_bytes":7,"next":3,"end":4,"log":[{part}]}}"#);
    let set = format!(
        r#"{{"version":1,"id":"20260131T235959123Z-0123abcd","record":{record},"changes":{changes},"shards":[{shard}]}}"#
    );
    seed("cluster_backup", "set", [b"\0".as_slice(), set.as_bytes()].concat());
    let entry = cluster_log::codec::encode_entry(&cluster::LogEntry {
        epoch: cluster::Epoch(0),
        writer: cluster::WriterId(0),
        body: cluster::EntryBody::Writes(cluster_log::Batch::from(vec![Bytes::from_static(b"{}")])),
    });
    let entry = entry.unwrap();
    let length = (entry.len() as u32).to_le_bytes();
    // One entry: the number is a third of the first byte.
    seed("cluster_backup", "log_part", [&[4], length.as_slice(), &entry].concat());
    let all = format!(r#"{{"aliases":{{"x":"c"}},"collections":{{"0195a":{changes}}}}}"#);
    seed("cluster_backup", "changes", [b"\x02".as_slice(), all.as_bytes()].concat());
}

fn saved_models() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache/saved-models/models");
    for name in ["embedding", "version_1_counter"] {
        seed("saved_model", name, std::fs::read(models.join(name).join("saved_model.pb")).unwrap());
    }
}

fn tensors() -> Vec<NamedTensor> {
    let strings: Vec<Bytes> = vec![Bytes::from_static(b"a"), Bytes::from_static(b"\xff\x00")];
    vec![
        NamedTensor::new(
            "x",
            Tensor::from_vec(vec![2, 2], vec![1.0f32, -0.5, 3.5e10, 0.0]).unwrap(),
        ),
        NamedTensor::new("n", Tensor::from_vec(vec![2], vec![i64::MIN, 7]).unwrap()),
        NamedTensor::new("s", Tensor::from_strings(vec![2], strings).unwrap()),
    ]
}

fn protocols() {
    let tensors = tensors();
    for (name, count) in [("one", 1), ("all", 3)] {
        let raw = oip::json::encode_request("id", &tensors[..count], &["x"], true).unwrap();
        let length = (raw.header_length.unwrap() as u16).to_le_bytes();
        seed("oip_json", &format!("raw-{name}"), chosen(&[1, length[0], length[1]], &raw.body));
        let message = oip::grpc::encode_request("m", Some(1), &tensors[..count], &["x"]).unwrap();
        seed("oip_protobuf", name, message.encode_to_vec());
        let target =
            tfs::grpc::PredictTarget { name: "m".into(), version: Some(2), ..Default::default() };
        let message = tfs::grpc::encode_request(&target, &tensors[..count], &["x"]);
        seed("tfs_protobuf", name, message.encode_to_vec());
    }
    let plain = oip::json::encode_request("id", &tensors[..2], &["x"], false).unwrap();
    seed("oip_json", "plain", &plain.body);
    seed(
        "oip_json",
        "parameters",
        br#"{"id":"a","parameters":{"timeout":5,"priority":1,"binary_data_output":true},"inputs":[{"name":"h","datatype":"FP16","shape":[1],"data":[1.5]},{"name":"b","shape":[1,2],"datatype":"BOOL","data":[[true,false]]},{"name":"s","datatype":"BYTES","shape":[1],"data":["\u00e9\n"]}],"outputs":[{"name":"x","parameters":{"binary_data":false}}]}"#,
    );
    seed(
        "golden_json",
        "plain",
        br#"[{"request":{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,NaN]}],"outputs":[{"name":"x"}]},"response":{"outputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[0.5]}]}}]"#,
    );
    seed("golden_json", "no-response", br#"[{"request":{"inputs":[]}}]"#);
    seed("oip_json", "only-input", chosen(&[0], &[0; 16]));
    seed(
        "tfs_json",
        "row",
        br#"{"instances":[{"x":[1,2.5],"s":"a"},{"x":[3,4e-3],"s":{"b64":"/w=="}}]}"#,
    );
    seed("tfs_json", "column", br#"{"signature_name":"serving_default","inputs":{"x":[[1,2]],"n":[-9],"b":[true],"u":[18446744073709551615],"d":[NaN,Infinity]}}"#);
    seed(
        "tfs_examples",
        "json",
        br#"{"context":{"n":[1]},"examples":[{"x":[1.5,2.0],"s":["a",{"b64":"AP8="}]},{"x":[1.0,-2.0],"s":"b"}]}"#,
    );
    seed("tfs_json", "answer", br#"{"predictions":[{"x":1.0,"s":"a"}]}"#);
    // An instance without members was encoded as a request that cannot be parsed.
    seed("tfs_json", "empty_instance", br#"{"instances":[{}]}"#);
    seed(
        "tfs_warmup",
        "file",
        tfs::warmup::write_requests("m", &[tensors.clone(), tensors[..1].to_vec()]),
    );
    // A record without its length and checksums; the target adds them.
    let file = tfs::warmup::write_requests("m", &[tensors]);
    seed("tfs_warmup", "record", &file[12..file.len() - 4]);
}

fn qdrant() {
    let filter = r#"{"must":[{"key":"a.b[]","match":{"any":["x",1]}},{"has_id":[1,"6ba7b810-9dad-11d1-80b4-00c04fd430c8"]}],"should":[{"key":"n","range":{"gte":1,"lt":2.5}}],"must_not":[{"is_empty":{"key":"k"}},{"must":[{"is_null":{"key":"z"}}]}]}"#;
    let bodies: [(u8, &str, String); 12] = [
        (0, "points", r#"{"points":[{"id":1,"vector":[0.1,0.2],"payload":{"a":{"b":[1,"x"]}}},{"id":"6ba7b810-9dad-11d1-80b4-00c04fd430c8","vector":[1,2]}]}"#.into()),
        (1, "batch", r#"{"batch":{"ids":[1,2],"vectors":{"v":[[0.1],[0.2]]},"payloads":[null,{"a":1}]}}"#.into()),
        (2, "delete", format!(r#"{{"filter":{filter}}}"#)),
        (3, "operations", r#"{"operations":[{"upsert":{"points":[{"id":1,"vector":[1]}]}},{"delete":{"points":[1]}},{"set_payload":{"payload":{"a":1},"points":[1]}}]}"#.into()),
        (4, "query", format!(r#"{{"query":{{"nearest":[0.1,0.2]}},"filter":{filter},"limit":5,"offset":1,"with_payload":["a.b"],"with_vector":true,"score_threshold":0.5,"params":{{"hnsw_ef":64,"exact":false}}}}"#)),
        (4, "filter", filter.into()),
        (5, "queries", r#"{"searches":[{"query":1,"limit":2},{"prefetch":[{"query":[1,2],"limit":9}],"query":{"fusion":"rrf"}}]}"#.into()),
        (6, "scroll", format!(r#"{{"limit":3,"offset":2,"filter":{filter},"with_payload":{{"exclude":["a"]}}}}"#)),
        (8, "facet", r#"{"key":"a","limit":10,"exact":true}"#.into()),
        (10, "create", r#"{"vectors":{"size":4,"distance":"Cosine"},"on_disk_payload":true}"#.into()),
        (11, "aliases", r#"{"actions":[{"create_alias":{"collection_name":"c","alias_name":"a"}},{"delete_alias":{"alias_name":"b"}},{"rename_alias":{"old_alias_name":"a","new_alias_name":"d"}}]}"#.into()),
        (12, "payload", r#"{"payload":{"a":[1,{"b":null}]},"points":[1],"key":"x.y"}"#.into()),
    ];
    for (kind, name, body) in bodies {
        seed("qdrant_json", name, chosen(&[kind], body.as_bytes()));
    }
    qdrant_messages();
}

fn qdrant_messages() {
    let at = |method: &str| {
        let path = format!("/qdrant.{method}");
        let place = qdrant_grpc::PATHS.iter().position(|known| *known == path).unwrap();
        [u8::try_from(place).unwrap()]
    };
    let keyword = pb::r#match::MatchValue::Keyword("Ulm".into());
    let field = pb::FieldCondition {
        key: "city".into(),
        r#match: Some(pb::Match { match_value: Some(keyword) }),
        ..pb::FieldCondition::default()
    };
    let condition =
        pb::Condition { condition_one_of: Some(pb::condition::ConditionOneOf::Field(field)) };
    let filter = pb::Filter { must: vec![condition], ..pb::Filter::default() };
    let search = pb::SearchPoints {
        collection_name: "c".into(),
        vector: vec![0.5, 1.0],
        filter: Some(filter.clone()),
        limit: 3,
        ..pb::SearchPoints::default()
    };
    seed("qdrant_protobuf", "search", chosen(&at("Points/Search"), &search.encode_to_vec()));
    let dense = pb::vector::Vector::Dense(pb::DenseVector { data: vec![0.5, 1.5] });
    let vector = pb::Vector { vector: Some(dense), ..pb::Vector::default() };
    let vectors = pb::vectors::VectorsOptions::Vector(vector);
    let number = pb::value::Kind::IntegerValue(7);
    let point = pb::PointStruct {
        id: Some(pb::PointId { point_id_options: Some(pb::point_id::PointIdOptions::Num(1)) }),
        payload: [("n".to_owned(), pb::Value { kind: Some(number) })].into(),
        vectors: Some(pb::Vectors { vectors_options: Some(vectors) }),
    };
    let upsert = pb::UpsertPoints {
        collection_name: "c".into(),
        points: vec![point.clone(), point],
        ..pb::UpsertPoints::default()
    };
    seed("qdrant_protobuf", "upsert", chosen(&at("Points/Upsert"), &upsert.encode_to_vec()));
    let input = pb::vector_input::Variant::Dense(pb::DenseVector { data: vec![1.0] });
    let nearest = pb::query::Variant::Nearest(pb::VectorInput { variant: Some(input) });
    let prefetch = pb::PrefetchQuery {
        query: Some(pb::Query { variant: Some(nearest) }),
        filter: Some(filter),
        ..pb::PrefetchQuery::default()
    };
    let query = pb::QueryPoints {
        collection_name: "c".into(),
        prefetch: vec![prefetch],
        query: Some(pb::Query { variant: Some(pb::query::Variant::Fusion(0)) }),
        ..pb::QueryPoints::default()
    };
    seed("qdrant_protobuf", "query", chosen(&at("Points/Query"), &query.encode_to_vec()));
    let params = pb::VectorParams { size: 4, distance: 1, ..pb::VectorParams::default() };
    let config = pb::vectors_config::Config::Params(params);
    let create = pb::CreateCollection {
        collection_name: "c".into(),
        vectors_config: Some(pb::VectorsConfig { config: Some(config) }),
        ..pb::CreateCollection::default()
    };
    seed("qdrant_protobuf", "create", chosen(&at("Collections/Create"), &create.encode_to_vec()));
}

fn models() {
    let fixed = |sizes: &[usize]| sizes.iter().map(|&size| Dim::Fixed(size)).collect::<Vec<_>>();
    let weights = vec![0.25; 2048];
    let model = ModelBuilder::new("seed", 17)
        .metadata("author", "seed")
        .input("x", DType::F32, &fixed(&[1, 2]))
        .output("y", DType::F32, &fixed(&[1, 2]))
        .floats("w", &[2, 2], &[1.0, 2.0, 3.0, 4.0])
        .ints("shape", &[2], &[1, 2])
        .node(Node::new("MatMul", &["x", "w"], &["m"]).named("mul"))
        .node(Node::new("Reshape", &["m", "shape"], &["y"]).int("allowzero", 0));
    seed("onnx", "small", model.encode());
    let large = ModelBuilder::new("large", 17)
        .input("x", DType::F32, &fixed(&[1, 2]))
        .output("y", DType::F32, &fixed(&[1, 1024]))
        .floats("w", &[2, 1024], &weights)
        .node(Node::new("MatMul", &["x", "w"], &["y"]));
    seed("onnx", "large", large.encode());

    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let stored =
        zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let deflated = zip::write::SimpleFileOptions::default();
    for (name, options) in [
        ("data.pkl", stored),
        ("constants.pkl", stored),
        ("code/a.py", deflated),
        ("data/0", stored),
    ] {
        writer.start_file(format!("m/{name}"), options).unwrap();
        writer.write_all(&[name.as_bytes(), &[7; 90]].concat()).unwrap();
    }
    seed("torch_archive", "module", writer.finish().unwrap().into_inner());
}

fn images() {
    use image::{DynamicImage, ImageFormat, Rgb, RgbImage};
    let pixels = RgbImage::from_fn(16, 12, |x, y| Rgb([x as u8 * 15, y as u8 * 20, (x * y) as u8]));
    let image = DynamicImage::ImageRgb8(pixels);
    let formats = [
        ("png", ImageFormat::Png),
        ("jpeg", ImageFormat::Jpeg),
        ("webp", ImageFormat::WebP),
        ("tiff", ImageFormat::Tiff),
        ("bmp", ImageFormat::Bmp),
    ];
    for (name, format) in formats {
        let mut bytes = Cursor::new(Vec::new());
        image.write_to(&mut bytes, format).unwrap();
        seed("image_decode", name, bytes.into_inner());
    }
    image_archive(&image);
    // A JPEG file whose EXIF data states a rotation and 300 dots per inch.
    let mut jpeg = Cursor::new(Vec::new());
    image.write_to(&mut jpeg, ImageFormat::Jpeg).unwrap();
    let mut tags = b"Exif\0\0MM\0*\0\0\0\x08\0\x03".to_vec();
    tags.extend([1, 0x12, 0, 3, 0, 0, 0, 1, 0, 6, 0, 0]);
    tags.extend([1, 0x1a, 0, 5, 0, 0, 0, 1, 0, 0, 0, 50]);
    tags.extend([1, 0x28, 0, 3, 0, 0, 0, 1, 0, 2, 0, 0]);
    tags.extend([0, 0, 0, 0, 0, 0, 1, 0x2c, 0, 0, 0, 1]);
    let length = (tags.len() as u16 + 2).to_be_bytes();
    let jpeg = jpeg.into_inner();
    seed("image_decode", "exif", [&jpeg[..2], &[0xff, 0xe1], &length, &tags, &jpeg[2..]].concat());
}

/// Writes an archive with every kind of entry of an upload: images stored and compressed, a folder,
/// a text, an archive and a file that is damaged.
fn image_archive(image: &image::DynamicImage) {
    let mut png = Cursor::new(Vec::new());
    image.write_to(&mut png, image::ImageFormat::Png).unwrap();
    let png = png.into_inner();
    let stored =
        zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let deflated = zip::write::SimpleFileOptions::default();
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    writer.add_directory("a", stored).unwrap();
    for (name, options, bytes) in [
        ("a/stored.png", stored, png.as_slice()),
        ("a/compressed.png", deflated, &png),
        ("notes.txt", deflated, b"no image"),
        ("inner.zip", stored, b"PK\x03\x04"),
        ("damaged.jpg", stored, &png[..20]),
    ] {
        writer.start_file(name, options).unwrap();
        writer.write_all(bytes).unwrap();
    }
    seed("image_archive", "images", writer.finish().unwrap().into_inner());
}

fn fingerprints() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/vision/tests/data/wsq");
    for (target, name) in [
        ("wsq_decode", "nist-107x131.wsq"),
        ("wsq_decode", "even-taps-110x97.wsq"),
        ("wsq_decode", "restarts-100x97.wsq"),
        ("nist_parse", "card.an2"),
    ] {
        seed(target, name, std::fs::read(folder.join(name)).unwrap());
    }
}

fn sounds() {
    let clips = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/audio/tests/data");
    for name in ["clip-alac.m4a", "clip-last.m4a", "clip.aiff", "clip.flac", "clip.mp3", "clip.ogg"]
    {
        seed("audio_decode", name, std::fs::read(clips.join(name)).unwrap());
    }
    let mut wave = Cursor::new(Vec::new());
    let spec = hound::WavSpec {
        channels: 2,
        sample_rate: 8000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut writer = hound::WavWriter::new(&mut wave, spec).unwrap();
    (0..400).for_each(|at| writer.write_sample((at * 331 % 2001 - 1000) as i16).unwrap());
    writer.finalize().unwrap();
    seed("audio_decode", "clip.wav", wave.into_inner());
}

fn templates() {
    let graph = matching::synthetic::fingerprint(1);
    let few = matching::Graph {
        vertices: graph.vertices.iter().take(12).copied().collect(),
        ..graph.clone()
    };
    seed("iso_template", "template", matching::iso::write(&few).unwrap());
    for format in matching::template::TemplateFormat::ALL {
        let bytes = matching::template::write(&few, format).unwrap();
        seed("iso_template", format.name(), bytes);
    }
    let photo = matching::synthetic::photo(1);
    let described = matching::Graph {
        vertices: photo.vertices.iter().take(12).copied().collect(),
        descriptors: photo.descriptors.iter().take(12).copied().collect(),
        ..photo
    };
    for (name, graph) in [("record", &few), ("described", &described)] {
        let mut record = Vec::new();
        graph.encode(&mut record);
        seed("iso_template", name, record);
    }
}

fn storage_files() {
    let mut packer = Packer::new();
    for length in [0, 5, 300, 5000] {
        packer.push(&vec![length as u8; length]).unwrap();
    }
    let mut pages = Vec::new();
    packer.finish(&mut pages).unwrap();
    seed("record_page", "short", &pages[..4096]);
    seed("record_page", "long", &pages[4096..]);

    let section = |kind, offset| Section { kind, offset, bytes: 100, crc32c: 7, aux: kind.into() };
    let sections = vec![section(1, 4096), section(2, 8192), section(3, 12288)];
    let block = Superblock { uuid: *b"0123456789abcdef", version: 1, rows: 9, sections };
    seed("superblock", "three", block.encode().unwrap());

    for (name, choice) in [
        ("slot", [0, 16, 0]),
        ("list", [1, 70, 0]),
        ("cut", [0x82, 40, 0]),
        ("other-slot", [2, 24, 16]),
    ] {
        seed("manifest", name, chosen(&choice, b"\x03\0\0\0"));
    }

    let config =
        PoolConfig { bytes_max: 64 << 20, huge_pages: false, fault_rate: Rate::unlimited() };
    let medium: Arc<dyn Medium> =
        Arc::new(DramMedium::new(SlotPool::new(config).unwrap(), None).unwrap());
    let (log, _) = Log::open(&medium, "log").unwrap();
    for payload in [&b"one"[..], b"", b"three, which is longer"] {
        let number = log.append(payload).unwrap();
        log.commit(number).unwrap();
    }
    drop(log);
    let bytes = medium.load("log").unwrap();
    seed("log_frames", "three", &bytes);
    let mut hole = bytes.clone();
    hole[112] ^= 1;
    seed("log_frames", "damaged", hole);
    seed("log_frames", "torn", &bytes[..bytes.len() - 9]);

    for (at, kind) in
        [CoarseKind::Flat, CoarseKind::IvfPq, CoarseKind::Rabitq].into_iter().enumerate()
    {
        let header = CoarseHeader {
            kind,
            metric: Metric::L2,
            dims: 16,
            rows: 400,
            recall: None,
            is_relative: kind == CoarseKind::IvfPq,
        };
        seed("coarse_index", &format!("header-{at}"), header.encode());
        for section in 0..8 {
            let patch = chosen(&[at as u8, section, 4, 0], &[0xff, 0xff, 0, 0]);
            seed("coarse_index", &format!("patch-{at}-{section}"), patch);
        }
    }
}

fn segment_parts() {
    let settings =
        SegmentSettings { dims: 16, metric: Metric::Dot, encoding: VectorEncoding::Bf16 };
    seed("segment_parts", "settings", chosen(&[0, 0], &settings.encode()));

    let (mut packer, mut map) = (Packer::new(), RowMapBuilder::default());
    for length in [10, 5000, 20] {
        map.push(packer.push(&vec![1; length]).unwrap()).unwrap();
    }
    seed("segment_parts", "rows", chosen(&[1, 3], &map.encode()));

    let (ids, order) = SegmentIds::new(vec![30, 10, 20]).unwrap().encode();
    seed("segment_parts", "ids", chosen(&[2, 3], &[ids, order].concat()));

    let mut deletes = Deletes::none(40);
    deletes.insert(3);
    let file = DeletesFile { segment: *b"0123456789abcdef", deletes, pending_deletes: vec![5, 6] };
    seed("segment_parts", "deletes", chosen(&[3, 40], &file.encode()));

    let point =
        PointRef { id: 7, embedding: &[0.5, -1.0], record: b"record", payload: b"{\"a\":1}" };
    for (name, op) in [("upsert", Op::Upsert(point)), ("delete", Op::Delete(7))] {
        let mut bytes = Vec::new();
        op.encode(&mut bytes);
        seed("segment_parts", name, chosen(&[4, 0], &bytes));
    }
}

/// A `config.pbtxt` of Triton.
const TRITON_CONFIG: &str = "name: \"m\" # a comment\nplatform: 'onnxruntime_onnx' max_batch_size: 8\n\
     input [ { name: \"x\" data_type: TYPE_FP32 dims: [ -1, 0x2 ] } ]\n\
     dynamic_batching { preferred_batch_size: [4, 8] max_queue_delay_microseconds: 100 }\n\
     instance_group [ { kind: KIND_CPU count: 1 } ]\n\
     parameters { key: \"a\" value: { string_value: \"b\" } }\n";

/// Configuration files of TensorFlow Serving.
const TFS_CONFIGS: [(&str, &str); 3] = [
    (
        "models",
        "# two models\nmodel_config_list: {\n  config: [{ name: 'a', base_path: \"/m\\x61\" },\n\
         { name: \"b\" model_version_policy < specific { versions: [1, 0x2] } >\n\
         version_labels { key: 'stable' value: 1 } model_type: TENSORFLOW }]\n}\n",
    ),
    (
        "batching",
        "max_batch_size { value: 128 }\nbatch_timeout_micros { value: 0 }\nallowed_batch_sizes: 1;\n",
    ),
    (
        "platform",
        "platform_configs { key: 'tensorflow' value { source_adapter_config {\n\
         [type.googleapis.com/tensorflow.serving.SavedModelBundleSourceAdapterConfig] {\n\
         legacy_config { session_config { gpu_options { allow_growth: true } } } } } } }",
    ),
];

fn settings() {
    let recognisers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recognisers");
    for name in ["vad", "sounds", "notes", "voiceprint"] {
        let text = std::fs::read_to_string(recognisers.join(name).join("millpond.toml")).unwrap();
        // The body of the section, its keys at the top, as the server passes it.
        let mut body = String::new();
        let mut inside = false;
        for line in text.lines() {
            match line.strip_prefix("[recogniser") {
                Some("]") => inside = true,
                Some(rest) => {
                    inside = true;
                    body += &format!("[{}\n", rest.trim_start_matches('.'));
                }
                None if line.starts_with('[') => inside = false,
                None if inside => {
                    body += &format!("{}\n", line.split("  #").next().unwrap_or(line))
                }
                None => {}
            }
        }
        seed("recogniser_toml", name, body);
        seed("model_toml", name, text);
    }
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/model.toml");
    let text = std::fs::read_to_string(model).unwrap();
    // Every setting of the documented example, enabled.
    let on = |line: &str| {
        line.strip_prefix("# ")
            .filter(|rest| rest.contains(" = ") || rest.starts_with('['))
            .unwrap_or(line)
            .to_owned()
    };
    seed("model_toml", "documented", text.lines().map(on).collect::<Vec<_>>().join("\n"));
    for (name, text) in KEY_FILES {
        seed("key_file", name, text);
    }
    for (name, text) in KEY_TOKENS {
        seed("key_token", name, text);
    }
    for (name, text) in TFS_CONFIGS {
        seed("tfs_config", name, text);
    }
    seed("triton_config", "model", TRITON_CONFIG);
}
