//! Metadata, configuration, statistics, index.

use std::collections::BTreeMap;
use std::time::Duration;

use base::{DType, VersionId};
use protocol::oip::{self, grpc, json};
use protocol::status::{BatchTotal, Batching, IndexEntry, QueueLimits, StatisticsEntry, Total};
use serde_json::{Value, json};

use crate::any;

fn value(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap()
}

#[test]
fn metadata_and_configuration() {
    let signature = any::inputs(&[("x", DType::F32, &[-1, 3]), ("s", DType::String, &[-1])]);
    let metadata = value(&json::model_metadata("m", &[1, 2], "onnxruntime", &signature));
    assert_eq!(
        metadata,
        json!({"name":"m","versions":["1","2"],"platform":"onnxruntime","outputs":[],"inputs":[
            {"name":"x","datatype":"FP32","shape":[-1,3]},{"name":"s","datatype":"BYTES","shape":[-1]}]})
    );
    let facts = BTreeMap::from([("labels".to_owned(), "a b".to_owned())]);
    let config = value(&json::model_config("m", "onnxruntime_onnx", &signature, &facts, None));
    assert_eq!(
        (&config["platform"], &config["backend"]),
        (&json!("onnxruntime_onnx"), &json!("onnxruntime"))
    );
    assert_eq!(config["input"][1]["data_type"], "TYPE_STRING");
    assert_eq!(config["input"][0]["dims"], json!([-1, 3]));
    assert_eq!(config["parameters"]["labels"]["string_value"], "a b");
    // Triton writes empty fields too.
    assert_eq!(config["input"][0]["is_shape_tensor"], json!(false));
    assert_eq!(config["input"][0]["allow_ragged_batch"], json!(false));
    assert_eq!(config["instance_group"], json!([]));
    assert_eq!(config["default_model_filename"], "");
    assert_eq!((&config["max_batch_size"], config.get("dynamic_batching")), (&json!(0), None));
    assert_eq!(grpc::model_config("m", "onnxruntime", &signature, &facts, None).max_batch_size, 0);
    let server = value(&json::server_metadata("millpond", "0.1.0"));
    let extensions = server["extensions"].as_array().unwrap();
    assert_eq!(extensions.len(), oip::EXTENSIONS.len());
    // Clients look for this name before they send a priority or a timeout.
    assert!(extensions.contains(&json!("schedule_policy")));
}

#[test]
fn a_model_that_merges_shows_its_batching() {
    let signature = any::inputs(&[("x", DType::F32, &[-1, 3]), ("s", DType::String, &[-1])]);
    let limits = QueueLimits { queue_max: 16, timeout: Duration::from_millis(5) };
    let batching = Batching {
        batch_max: 8,
        preferred: vec![4, 8],
        delay: Duration::from_millis(2),
        limits: QueueLimits::default(),
        levels: vec![limits, QueueLimits::default()],
        default_level: 2,
    };
    let config = |batching| {
        value(&json::model_config("m", "e", &signature, &BTreeMap::new(), Some(batching)))
    };
    let shown = config(&batching);
    assert_eq!(shown["max_batch_size"], 8);
    assert_eq!((&shown["input"][0]["dims"], &shown["input"][1]["dims"]), (&json!([3]), &json!([])));
    let dynamic = &shown["dynamic_batching"];
    assert_eq!(dynamic["preferred_batch_size"], json!([4, 8]));
    assert_eq!(dynamic["max_queue_delay_microseconds"], 2000);
    assert_eq!(
        (&dynamic["priority_levels"], &dynamic["default_priority_level"]),
        (&json!(2), &json!(2))
    );
    let level = &dynamic["priority_queue_policy"]["1"];
    assert_eq!(
        (&level["max_queue_size"], &level["default_timeout_microseconds"]),
        (&json!(16), &json!(5000))
    );
    assert_eq!(dynamic["default_queue_policy"]["max_queue_size"], 0);
    // Requests that are not joined along axis 0 keep it in the shapes.
    let apart = config(&Batching { batch_max: 0, ..batching.clone() });
    assert_eq!(
        (&apart["max_batch_size"], &apart["input"][0]["dims"]),
        (&json!(0), &json!([-1, 3]))
    );
}

#[test]
fn statistics_and_index() {
    let total = |count| Total { count, nanos: 10 * count };
    let entry = StatisticsEntry {
        id: VersionId { model: "m".into(), version: 3 },
        last_ms: 99,
        success: total(4),
        fail: total(1),
        queue: total(4),
        compute: total(4),
        items: 9,
        executions: 2,
        batches: vec![BatchTotal { size: 5, compute: total(1) }],
    };
    let statistics = value(&json::statistics(std::slice::from_ref(&entry)));
    let model = &statistics["model_stats"][0];
    assert_eq!(
        (&model["name"], &model["version"], &model["inference_count"]),
        (&json!("m"), &json!("3"), &json!(9))
    );
    assert_eq!(model["execution_count"], 2);
    assert_eq!(model["batch_stats"][0]["batch_size"], 5);
    assert_eq!(model["batch_stats"][0]["compute_infer"], json!({"count":1,"ns":10}));
    assert_eq!(model["inference_stats"]["fail"], json!({"count":1,"ns":10}));
    assert_eq!(model["inference_stats"]["compute_infer"], json!({"count":4,"ns":40}));
    assert_eq!(
        grpc::model_statistics(std::slice::from_ref(&entry)).model_stats[0].last_inference,
        99
    );
    let id = VersionId { model: "\"n\"".into(), version: 4 };
    let other = StatisticsEntry { id, batches: Vec::new(), ..entry.clone() };
    let both = value(&json::statistics(&[entry, other]));
    assert_eq!(both["model_stats"][0], *model);
    let mut other = both["model_stats"][1].clone();
    assert_eq!((&other["name"], &other["batch_stats"]), (&json!("\"n\""), &json!([])));
    for member in ["name", "version", "batch_stats"] {
        other[member] = model[member].clone();
    }
    assert_eq!(other, *model);
    assert_eq!(value(&json::statistics(&[])), json!({ "model_stats": [] }));

    let ready =
        IndexEntry { name: "m".into(), version: Some(1), state: "READY", reason: String::new() };
    let none = IndexEntry {
        name: "n".into(),
        version: None,
        state: "UNAVAILABLE",
        reason: "unloaded".into(),
    };
    let entries = [ready, none];
    assert_eq!(
        value(&json::repository_index(&entries)),
        json!([{"name":"m","version":"1","state":"READY","reason":""},
               {"name":"n","state":"UNAVAILABLE","reason":"unloaded"}])
    );
    assert_eq!(grpc::repository_index(&entries).models[1].version, "");
}
