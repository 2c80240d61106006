//! An image as a model's input, and as a thumbnail.

use vision::{Fit, Image, Layout, Limits, Order, Preprocess, decode, thumbnail};

fn image(width: u32, height: u32, rgb: [u8; 3]) -> Image {
    Image { width, height, rgb: rgb.repeat((width * height) as usize) }
}

fn written(preprocess: &Preprocess, image: &Image) -> Vec<f32> {
    let mut out = vec![f32::NAN; preprocess.len()];
    preprocess.write(image, &mut out).unwrap();
    out
}

#[test]
fn every_layout_and_order_puts_each_channel_in_its_place() {
    let base = Preprocess {
        width: 2,
        height: 1,
        mean: [0.0; 3],
        std: [1.0, 2.0, 4.0],
        scale: 1.0,
        ..Preprocess::default()
    };
    let sample = image(2, 1, [10, 20, 40]);
    assert_eq!(written(&base, &sample), [10.0, 10.0, 10.0, 10.0, 10.0, 10.0]);
    let bgr = Preprocess { order: Order::Bgr, std: [1.0; 3], ..base.clone() };
    assert_eq!(written(&bgr, &sample), [40.0, 40.0, 20.0, 20.0, 10.0, 10.0]);
    let last = Preprocess { layout: Layout::Nhwc, std: [1.0; 3], ..base.clone() };
    assert_eq!(written(&last, &sample), [10.0, 20.0, 40.0, 10.0, 20.0, 40.0]);
    let whole = Preprocess { width: 1, height: 1, ..Preprocess::default() };
    let [red, ..] = written(&whole, &sample)[..] else { panic!() };
    assert!((red - (10.0 / 255.0 - 0.485) / 0.229).abs() < 1e-6);
    assert!(base.write(&sample, &mut [0.0; 5]).is_err());
}

/// Returns an image twice as wide as high, its left half black and its right half white.
fn halves() -> Image {
    let rgb = (0..20 * 10).flat_map(|at| [if at % 20 < 10 { 0 } else { 255 }; 3]).collect();
    Image { width: 20, height: 10, rgb }
}

#[test]
fn shapes_are_stretched_cut_or_padded() {
    let base = Preprocess {
        width: 8,
        height: 8,
        mean: [0.5; 3],
        std: [1.0; 3],
        scale: 1.0 / 255.0,
        ..Preprocess::default()
    };
    let row = |fit, y: usize| {
        let values = written(&Preprocess { fit, ..base.clone() }, &halves());
        [0, 1, 6, 7].map(|x| (values[y * 8 + x] * 2.0).round() as i32)
    };
    for fit in [Fit::Stretch, Fit::CentreCrop] {
        assert_eq!((row(fit, 0), row(fit, 7)), ([-1, -1, 1, 1], [-1, -1, 1, 1]), "{fit:?}");
    }
    assert_eq!(
        (row(Fit::Pad, 0), row(Fit::Pad, 4)),
        ([0; 4], [-1, -1, 1, 1]),
        "grey above, the image in the middle"
    );
    for (width, height) in [(1, 1), (1, 5000), (5000, 1), (3, 7)] {
        for fit in [Fit::Stretch, Fit::CentreCrop, Fit::Pad] {
            let values =
                written(&Preprocess { fit, ..base.clone() }, &image(width, height, [128; 3]));
            assert!(values.iter().all(|value| value.abs() < 0.01), "{width} x {height} {fit:?}");
        }
    }
}

#[test]
fn thumbnails_are_small_and_keep_the_shape() {
    let small = decode(&thumbnail(&halves(), 8).unwrap(), &Limits::default()).unwrap().image;
    assert_eq!((small.width, small.height), (8, 4));
    let same = decode(&thumbnail(&halves(), 500).unwrap(), &Limits::default()).unwrap().image;
    assert_eq!((same.width, same.height), (20, 10), "never enlarged");
}
