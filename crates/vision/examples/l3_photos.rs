#![allow(missing_docs, clippy::all)]
#[path = "../../bench/src/images/attacks.rs"]
mod attacks;
#[path = "../../bench/src/random.rs"]
mod random;

mod lettering {
    use crate::random::Random;
    use base::Result;
    use vision::Picture;
    pub(super) fn over(picture: &Picture, lines: usize, random: &mut Random) -> Result<Picture> {
        let mut out = picture.clone();
        let (w, h) = (picture.width as i64, picture.height as i64);
        for _ in 0..lines {
            let size = ((h as f64) * (0.06 + 0.06 * random.unit()) / 7.0).max(1.0) as i64;
            let (mut x, y) =
                ((w as f64 * 0.3 * random.unit()) as i64, (h as f64 * 0.9 * random.unit()) as i64);
            let colour = [random.bits() as u8, random.bits() as u8, random.bits() as u8];
            for _ in 0..20 {
                let glyph = random.bits() | random.bits();
                for gy in 0..7 {
                    for gx in 0..5 {
                        if glyph >> (gy * 5 + gx) & 1 == 1 {
                            for py in 0..size {
                                for px in 0..size {
                                    let (ax, ay) = (x + gx * size + px, y + gy * size + py);
                                    if ax < w && ay < h {
                                        let at = (ay * w + ax) as usize * 3;
                                        out.rgb[at..at + 3].copy_from_slice(&colour);
                                    }
                                }
                            }
                        }
                    }
                }
                x += 6 * size;
            }
        }
        Ok(out)
    }
}
use attacks::Attack;
use matching::{Graph, Options, Probe, Scratch, explain};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
extern crate millpond_vision as vision;

fn load(path: &std::path::Path) -> vision::Picture {
    vision::decode(&std::fs::read(path).unwrap(), &vision::Limits::default()).unwrap().picture
}
fn arg<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}
fn parallel<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let out = Mutex::new(Vec::new());
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count {
                        break;
                    }
                    let v = work(at);
                    out.lock().unwrap().push((at, v));
                }
            });
        }
    });
    let mut out = out.into_inner().unwrap();
    out.sort_by_key(|p| p.0);
    out.into_iter().map(|p| p.1).collect()
}
fn cpu() -> f64 {
    let t = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    t.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e6
}
fn main() {
    let mut paths: Vec<_> = std::fs::read_dir("/work/shared/data/photos")
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| {
            p.extension().is_some_and(|e| !e.eq_ignore_ascii_case("txt") && !e.eq_ignore_ascii_case("md"))
        })
        .collect();
    paths.sort();
    if let Ok(n) = std::env::var("ONLY") {
        let n: usize = n.parse().unwrap();
        paths = paths.into_iter().step_by(500 / n).collect();
    }
    let only = std::env::var("ATTACKS").unwrap_or_default();
    let photos: usize = arg("PHOTOS", 100);
    let every: usize = arg("EVERY", 5);
    let offset: usize = arg("OFFSET", 0);
    let impostors: usize = arg("IMPOSTORS", 40);
    let mut options = vision::photo::Options::default();
    options.working = arg("WORKING", options.working);
    options.vertices_max = arg("N", options.vertices_max);
    let mut mo = Options::default();
    mo.descriptor_bits_max = arg("BITS", mo.descriptor_bits_max);
    let t0 = cpu();
    let _ = t0;
    let made: Vec<(Graph, f64, (u32, u32))> = parallel(paths.len(), |i| {
        let p = load(&paths[i]);
        let g = p.gray();
        let a = cpu();
        let k = vision::photo::keypoints(&g, &options);
        (k, cpu() - a, (p.width, p.height))
    });
    let n = made.iter().map(|m| m.0.vertices.len()).sum::<usize>() as f64 / made.len() as f64;
    let mut counts: Vec<usize> = made.iter().map(|m| m.0.vertices.len()).collect();
    counts.sort();
    let mut ms: Vec<f64> = made.iter().map(|m| m.1).collect();
    ms.sort_by(f64::total_cmp);
    println!(
        "{} photos, {n:.1} points mean, min {} 1% {} 5% {}; keypoints ms p50 {:.1} p95 {:.1} max {:.1}",
        made.len(),
        counts[0],
        counts[5],
        counts[25],
        ms[ms.len() / 2],
        ms[ms.len() * 95 / 100],
        ms[ms.len() - 1]
    );
    let records: Vec<Vec<u8>> = made
        .iter()
        .map(|m| {
            let mut b = Vec::new();
            m.0.encode(&mut b);
            b
        })
        .collect();
    struct Row {
        attack: usize,
        variant: usize,
        photo: usize,
        genuine: f32,
        pairs: u32,
        tent: f32,
        imp: Vec<f32>,
        n: usize,
        us: f64,
    }
    let rows: Vec<Vec<Row>> = parallel(photos, |q| {
        let photo = (offset + q * every) % paths.len();
        let p = load(&paths[photo]);
        let mut out = Vec::new();
        let mut scratch = Scratch::new();
        for (ai, (attack, name, copies)) in Attack::ALL.iter().enumerate() {
            if !only.is_empty() && !only.contains(name) {
                continue;
            }
            for variant in 0..*copies {
                let mut r = random::Random::new(
                    (photo * 1000 + ai * 10 + variant) as u64 + arg("SEED", 7_u64) * 1_000_000,
                );
                let key = format!(
                    "/tmp/w/l3cache/{}_{name}_{variant}_{}.jpg",
                    paths[photo].file_stem().unwrap().to_string_lossy(),
                    arg("SEED", 7_u64)
                );
                let bytes = std::fs::read(&key).unwrap_or_else(|_| {
                    let b = attack.copy(&p, variant, &mut r).unwrap();
                    std::fs::write(&key, &b).unwrap();
                    b
                });
                let c = vision::decode(&bytes, &vision::Limits::default()).unwrap().picture;
                let g = vision::photo::keypoints(&c.gray(), &options);
                let probe = Probe::new(&g, mo);
                let e = explain(&probe, &records[photo], &mut scratch).unwrap();
                let mut imp = Vec::new();
                let a = cpu();
                for k in 0..impostors {
                    let o =
                        (photo + 1 + (k * 7919 + ai * 31 + variant * 17) % (paths.len() - 1)) % paths.len();
                    if o == photo {
                        continue;
                    }
                    imp.push(matching::score(&probe, &records[o], &mut scratch).unwrap());
                }
                let us = (cpu() - a) * 1000.0 / impostors as f64;
                out.push(Row {
                    attack: ai,
                    variant,
                    photo,
                    genuine: e.score,
                    pairs: e.evidence.pairs,
                    tent: 0.0,
                    imp,
                    n: g.vertices.len(),
                    us,
                });
            }
        }
        out
    });
    let rows: Vec<Row> = rows.into_iter().flatten().collect();
    let mut imp: Vec<f32> = rows.iter().flat_map(|r| r.imp.iter().copied()).collect();
    imp.sort_by(f32::total_cmp);
    let top = imp.len();
    println!(
        "impostors {top}: p50 {:.1} p99 {:.1} p99.9 {:.1} p99.99 {:.1} max {:.1} {:?}; us/match {:.0}",
        imp[top / 2],
        imp[top * 99 / 100],
        imp[top * 999 / 1000],
        imp[top * 9999 / 10000],
        imp[top - 1],
        &imp[top.saturating_sub(8)..],
        rows.iter().map(|r| r.us).sum::<f64>() / rows.len() as f64
    );
    let accept = imp[top - 1] * arg("MARGIN", 1.3_f32);
    println!(
        "{:14} {:>5} {:>7} {:>7} {:>7} {:>7} {:>8} {:>8} {:>6} {:>6}",
        "attack", "n", "min", "1%", "5%", "50%", ">max imp", ">accept", "pairs", "points"
    );
    let (mut sum, mut sum2) = (0.0, 0.0);
    for (ai, (_, name, copies)) in Attack::ALL.iter().enumerate() {
        for variant in 0..=*copies {
            let some: Vec<&Row> = rows
                .iter()
                .filter(|r| r.attack == ai && (variant == *copies || r.variant == variant))
                .collect();
            if some.is_empty() {
                continue;
            }
            let mut s: Vec<f32> = some.iter().map(|r| r.genuine).collect();
            s.sort_by(f32::total_cmp);
            let share = |t: f32| s.iter().filter(|v| **v > t).count() as f64 / s.len() as f64;
            if variant == *copies {
                sum += share(imp[top - 1]);
                sum2 += share(accept);
            }
            let mut pairs: Vec<u32> = some.iter().map(|r| r.pairs).collect();
            pairs.sort();
            println!(
                "{:14} {:>5} {:>7.0} {:>7.0} {:>7.0} {:>7.0} {:>8.4} {:>8.4} {:>6} {:>6.0}",
                if variant == *copies { name.to_string() } else { format!("  variant {variant}") },
                s.len(),
                s[0],
                s[s.len() / 100],
                s[s.len() / 20],
                s[s.len() / 2],
                share(imp[top - 1]),
                share(accept),
                pairs[pairs.len() / 2],
                some.iter().map(|r| r.n).sum::<usize>() as f64 / some.len() as f64
            );
        }
    }
    println!("mean share over impostor max {:.4}, over accept {accept:.0}: {:.4}", sum / 8.0, sum2 / 8.0);
    if arg("LIST", 0) > 0 {
        for r in rows.iter().filter(|r| r.genuine <= accept) {
            println!(
                "missed {} {} v{} score {:.0} pairs {} points {} (orig {})",
                paths[r.photo].file_name().unwrap().to_string_lossy(),
                Attack::ALL[r.attack].1,
                r.variant,
                r.genuine,
                r.pairs,
                r.n,
                made[r.photo].0.vertices.len()
            );
        }
        for r in &rows {
            for (k, v) in r.imp.iter().enumerate() {
                if *v > imp[top - 6] {
                    let o = (r.photo + 1 + (k * 7919 + r.attack * 31 + r.variant * 17) % (paths.len() - 1))
                        % paths.len();
                    println!(
                        "impostor {:.0}: {} {} v{} vs {}",
                        v,
                        paths[r.photo].display(),
                        Attack::ALL[r.attack].1,
                        r.variant,
                        paths[o].display()
                    );
                }
            }
        }
    }
}
