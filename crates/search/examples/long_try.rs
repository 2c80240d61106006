//! Tries the indexes for long vectors on a folder of vectors: recall against thread processor time.
use std::time::Instant;
extern crate millpond_search as search;
use search::coarse::*;

fn read(path: &str) -> (usize, Vec<u32>) {
    let bytes = std::fs::read(path).unwrap();
    let words: Vec<u32> = bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
    let dims = words[0] as usize;
    (dims, words.chunks_exact(dims + 1).flat_map(|row| row[1..].to_vec()).collect())
}
fn cpu() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let kind = match args[2].as_str() { "flat" => Kind::Flat, "rabitq" => Kind::Rabitq, _ => Kind::IvfPq };
    let seconds: f64 = args[3].parse().unwrap();
    let floats = |name: &str| {
        let (dims, words) = read(&format!("{}/{name}", args[1]));
        (dims, words.into_iter().map(f32::from_bits).collect::<Vec<f32>>())
    };
    let (dims, base) = floats("base.fvecs");
    let (_, queries) = floats("query.fvecs");
    let (near, truth) = read(&format!("{}/truth.ivecs", args[1]));
    let started = Instant::now();
    let built = build(kind, &Build { vectors: &base, dims, metric: Metric::L2, threads: 2, seed: 1 }).unwrap();
    let exact = DenseVectors::new(&base, dims, Metric::L2, &built.order).unwrap();
    drop(base);
    println!("built in {:.1} s, {} MB, recall {:?}", started.elapsed().as_secs_f64(), built.index.memory_bytes() >> 20, built.index.recall());
    let (mut scratch, mut hits) = (Scratch::default(), Vec::new());
    for probes in args[4].split(',').map(|v| v.parse::<usize>().unwrap()) {
        let params = Params { probes, refine: args.get(5).map_or(0, |v| v.parse().unwrap()) };
        let mut right = 0;
        let mut one = |query: &[f32], hits: &mut Vec<Hit>| {
            built.index.search(query, 10, &params, None, Some(&exact), &mut scratch, hits).unwrap();
        };
        for (query, truth) in queries.chunks_exact(dims).zip(truth.chunks_exact(near)) {
            one(query, &mut hits);
            right += hits.iter().filter(|hit| truth[..10].contains(&built.order[hit.row as usize])).count();
        }
        let count = queries.len() / dims;
        let (start, mut calls) = (cpu(), 0);
        while cpu() - start < seconds {
            for query in queries.chunks_exact(dims) { one(query, &mut hits); }
            calls += count;
        }
        println!("probes {probes}: recall {:.4}, {:.0}/s", right as f64 / (10 * count) as f64, calls as f64 / (cpu() - start));
    }
}
