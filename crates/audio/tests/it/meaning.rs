//! Written labels: each format is parsed back.

use millpond_audio::pipeline::{AudioSummary, PipelineEvent};
use millpond_audio::recogniser::Recogniser;
use millpond_audio::write::{LabelFormat, LabelWriter, ndjson, ndjson_summary};
use millpond_audio::{Fault, Label, decode};
use proptest::prelude::*;
use serde_json::Value;

fn label(start: f64, end: f64, text: &str) -> Label {
    Label { start, end, text: text.into(), score: 0.75, embedding: None }
}

fn summary(labels: usize) -> AudioSummary {
    AudioSummary { seconds: 7205.5, labels: labels as u64, faults: 1, partial: true, windows: 9 }
}

fn written(format: LabelFormat, labels: &[Label]) -> String {
    let mut writer = LabelWriter::new(format, Vec::new(), "a, \"b\" c.wav").unwrap();
    for (number, label) in labels.iter().enumerate() {
        if number == 1 {
            writer.fault(&Fault { at: 3600.25, what: "a frame\tis damaged".into() }).unwrap();
        }
        writer.label(label).unwrap();
    }
    String::from_utf8(writer.finish(&summary(labels.len())).unwrap()).unwrap()
}

#[test]
fn the_provided_recognisers_are_parsed() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../recognisers");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path().join("millpond.toml");
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let body = toml::to_string(&text.parse::<toml::Table>().unwrap()["recogniser"]).unwrap();
        let name = path.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
        let recogniser = Recogniser::parse(&name, &body).unwrap();
        assert_eq!(recogniser.classes().is_empty(), recogniser.threshold().is_some());
        names.push(name);
    }
    assert!(names.len() >= 6, "{names:?}");
}

#[test]
fn each_format_has_its_form() {
    let labels = [label(0.5, 61.25, "speech"), label(7200.0, 7205.5, "two words")];
    let check =
        |format: LabelFormat, expected: &str| assert_eq!(written(format, &labels), expected);
    check(
        LabelFormat::Table,
        concat!(
            "     start        end  score  label\n",
            " 00:00.500  01:01.250   0.75  speech\n",
            " 60:00.250                 !  a frame\\tis damaged\n",
            "120:00.000 120:05.500   0.75  two words\n",
            "120:05.500 of sound: 2 labels, 1 faults, partial\n",
        ),
    );
    check(
        LabelFormat::Csv,
        "file,start,end,label,score\r\n\"a, \"\"b\"\" c.wav\",0.500,61.250,speech,0.7500\r\n\
         \"a, \"\"b\"\" c.wav\",7200.000,7205.500,two words,0.7500\r\n",
    );
    check(
        LabelFormat::Srt,
        "1\n00:00:00,500 --> 00:01:01,250\nspeech\n\n2\n02:00:00,000 --> 02:00:05,500\ntwo words\n\n",
    );
    check(
        LabelFormat::Rttm,
        "SPEAKER a,_\"b\"_c 1 0.500 60.750 <NA> <NA> speech 0.7500 <NA>\n;; fault at 3600.250: a frame is damaged\n\
         SPEAKER a,_\"b\"_c 1 7200.000 5.500 <NA> <NA> two_words 0.7500 <NA>\n",
    );
    check(
        LabelFormat::Audacity,
        "0.500000\t61.250000\tspeech\n7200.000000\t7205.500000\ttwo words\n",
    );
    let json: Value = serde_json::from_str(&written(LabelFormat::Json, &labels)).unwrap();
    assert_eq!(json["format"], 1);
    assert_eq!(json["file"], "a, \"b\" c.wav");
    assert_eq!(json["labels"][1]["end"], 7205.5);
    assert_eq!(json["labels"][1]["score"], 0.75);
    assert_eq!(json["faults"][0]["what"], "a frame\tis damaged");
    assert_eq!(json["summary"]["partial"], true);
    let none: Value = serde_json::from_str(&written(LabelFormat::Json, &[])).unwrap();
    assert_eq!(none["labels"], Value::Array(Vec::new()));
}

#[test]
fn events_are_lines_of_json() {
    let format = decode::AudioFormat {
        container_and_codec: "wav".into(),
        rate: 16000,
        channels: 2,
        seconds: Some(1.5),
    };
    let line = |event: PipelineEvent| ndjson(&event).unwrap();
    let opened: Value = serde_json::from_str(&line(PipelineEvent::Opened(format))).unwrap();
    assert_eq!(
        (&opened["type"], &opened["rate"], &opened["seconds"]),
        (&"opened".into(), &16000.into(), &1.5.into())
    );
    let spoken = Label { embedding: Some(vec![0.1, -0.5]), ..label(1.0, 2.0, "a") };
    let spoken: Value = serde_json::from_str(&line(PipelineEvent::Label(spoken))).unwrap();
    assert_eq!(spoken["embedding"], serde_json::json!([0.1, -0.5]));
    assert_eq!(spoken["type"], "label");
    let fault = line(PipelineEvent::Fault(Fault { at: 0.25, what: "x".into() }));
    assert_eq!(fault, "{\"type\":\"fault\",\"at\":0.25,\"what\":\"x\"}\n");
    let progress = line(PipelineEvent::Progress { seconds: 60.0, total: None });
    assert_eq!(progress, "{\"type\":\"progress\",\"seconds\":60.0,\"total\":null}\n");
    let end: Value = serde_json::from_str(&ndjson_summary(&summary(2))).unwrap();
    assert_eq!(
        (&end["type"], &end["labels"], &end["windows"]),
        (&"summary".into(), &2.into(), &9.into())
    );
}

/// Texts with characters that formats reserve.
fn texts() -> impl Strategy<Value = Vec<String>> {
    let awkward = prop::collection::vec(
        prop_oneof![
            Just("\"".to_owned()),
            Just(",".to_owned()),
            Just("\t".to_owned()),
            Just("\n".to_owned()),
            Just("\r".to_owned()),
            Just("\r\n".to_owned()),
            Just("\\".to_owned()),
            Just("\\n".to_owned()),
            Just("-->".to_owned()),
            Just(" ".to_owned()),
            Just("ß€".to_owned()),
            "[a-z]{1,4}",
        ],
        1..8,
    );
    prop::collection::vec(awkward.prop_map(|parts| parts.concat()), 1..5)
}

/// The records of RFC 4180.
fn parse_csv(text: &str) -> Vec<Vec<String>> {
    let (mut records, mut record, mut field, mut quoted) =
        (Vec::new(), Vec::new(), String::new(), false);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => field.extend(letters.next()),
            '"' => quoted = !quoted,
            ',' if !quoted => record.push(std::mem::take(&mut field)),
            '\r' if !quoted && letters.peek() == Some(&'\n') => {
                letters.next();
                record.push(std::mem::take(&mut field));
                records.push(std::mem::take(&mut record));
            }
            other => field.push(other),
        }
    }
    assert!(!quoted && field.is_empty() && record.is_empty());
    records
}

/// Undoes a table's escapes.
fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        out.push(match letter {
            '\\' => match letters.next().unwrap() {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                other => other,
            },
            other => other,
        });
    }
    out
}

fn spaces(text: &str) -> String {
    text.replace(|letter: char| letter.is_control(), " ")
}

proptest! {
    #[test]
    fn any_text_can_be_read_back(texts in texts()) {
        let labels: Vec<Label> =
            texts.iter().enumerate().map(|(n, text)| label(n as f64, n as f64 + 0.5, text)).collect();

        let table = written(LabelFormat::Table, &labels);
        let rows: Vec<String> =
            table.lines().filter(|line| line.contains("  0.75  ")).map(|line| unescape(&line[30..])).collect();
        prop_assert_eq!(&rows, &texts);

        let json: Value = serde_json::from_str(&written(LabelFormat::Json, &labels)).unwrap();
        let read: Vec<&str> = json["labels"].as_array().unwrap().iter().map(|l| l["text"].as_str().unwrap()).collect();
        prop_assert_eq!(&read, &texts);

        let csv = parse_csv(&written(LabelFormat::Csv, &labels));
        let read: Vec<&str> = csv[1..].iter().map(|record| record[3].as_str()).collect();
        prop_assert_eq!(&read, &texts);
        prop_assert!(csv.iter().all(|record| record.len() == 5));

        let srt = written(LabelFormat::Srt, &labels);
        let lines: Vec<&str> = srt.split('\n').collect();
        prop_assert_eq!(lines.len(), labels.len() * 4 + 1);
        for (number, text) in texts.iter().enumerate() {
            prop_assert_eq!(lines[number * 4], (number + 1).to_string());
            prop_assert_eq!(lines[number * 4 + 2], spaces(text));
            prop_assert_eq!(lines[number * 4 + 3], "");
        }

        let rttm = written(LabelFormat::Rttm, &labels);
        let records: Vec<&str> = rttm.split('\n').filter(|line| line.starts_with("SPEAKER ")).collect();
        prop_assert_eq!(records.len(), labels.len());
        for (record, text) in records.iter().zip(&texts) {
            let fields: Vec<&str> = record.split_whitespace().collect();
            prop_assert_eq!(fields.len(), 10);
            prop_assert_eq!(fields[7], text.replace(|letter: char| letter.is_whitespace(), "_"));
        }

        let track = written(LabelFormat::Audacity, &labels);
        let records: Vec<Vec<&str>> = track.lines().map(|line| line.split('\t').collect()).collect();
        prop_assert_eq!(records.len(), labels.len());
        for (record, text) in records.iter().zip(&texts) {
            prop_assert_eq!(record.len(), 3);
            prop_assert_eq!(record[2], spaces(text));
        }

        for text in &texts {
            let line = ndjson(&PipelineEvent::Label(label(0.0, 1.0, text))).unwrap();
            prop_assert_eq!(line.find('\n'), Some(line.len() - 1));
            let value: Value = serde_json::from_str(&line).unwrap();
            prop_assert_eq!(value["text"].as_str(), Some(text.as_str()));
        }
    }
}
