//! Fits the values of an LED panel behind a diffuser to an image sequence, by conjugate gradient on tensor cores:
//! `cargo run --release -p ferrotile --example led_fit [FILE.png]`.
//!
//! Each LED lights a patch of pixels. So a frame is `A x` with a sparse A, one column for each LED. The values that
//! come nearest to the frame b solve `(A^T A + c I) x = A^T b`. That is a banded symmetric system for each colour, with
//! all frames at once on its right.
//!
//! The program solves the system in every precision. TF32 and f16 take about as many iterations as f32, and every
//! precision leaves a residual within the tolerance. The count of bf16 depends more on the system: it is printed and
//! not judged. The program writes a picture with a line for each frame: target, fit and error side by side.
//!
//! It runs on the first card, with 2622 LEDs, or without one in the emulator, with fewer. It fails where an iteration
//! count or a residual is not as said.

use std::collections::BTreeMap;
use std::error::Error;
use std::f64::consts::TAU;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ferrotile::{
    Arch, Buffer, CgOptions, CgPlan, Gpu, Precision, SymmetricBlockMatrix, TensorMut, TensorRef, reference,
};
use ndarray::{Array1, Array2, Array3, Array4, Axis, s};

/// Pixels from one LED to the next.
const PITCH: usize = 4;

/// LEDs that the patches of two LEDs at most this far apart, in rows and in columns, have pixels in common.
const REACH: usize = 6;

/// Half the size of a patch, in pixels; patches of LEDs that are [`REACH`] apart just meet.
const RADIUS: f64 = (REACH * PITCH) as f64 / 2.0 + 0.75;

/// Width of the bright middle of a patch in red, green and blue, in pixels: the diffuser scatters colours differently.
const WIDTHS: [f64; 3] = [1.9, 2.1, 2.3];

/// What an LED of value 1 gives in the middle of its patch, in grey levels of an 8-bit image.
const PEAK: f64 = 255.0;

/// Frames that are fitted together.
const FRAMES: usize = 8;

/// The residual that is asked for, as a share of the norm of `A^T b`: less than an 8-bit image can tell.
const TOLERANCE: f64 = 1e-4;

/// The share of the largest diagonal element that is added to the diagonal: it holds values down that pixels hardly
/// tell.
const REGULARISATION: f64 = 1e-3;

/// A panel of LEDs, in rows.
#[derive(Debug, Clone, Copy)]
struct Panel {
    columns: usize,
    rows: usize,
}

/// What a card fits, about 2600 LEDs: `A^T A` reaches `6 * 69 + 6 = 420` diagonals to the right of the main one.
const FULL: Panel = Panel { columns: 69, rows: 38 };

/// What the emulator fits in some seconds.
const SMALL: Panel = Panel { columns: 13, rows: 5 };

impl Panel {
    fn leds(self) -> usize {
        self.columns * self.rows
    }

    /// Height and width of the picture.
    fn pixels(self) -> (usize, usize) {
        (self.rows * PITCH, self.columns * PITCH)
    }

    /// The brightness of each LED, which differ by up to 10 %.
    fn brightness(self) -> Array1<f64> {
        Array1::from_shape_fn(self.leds(), |led| 0.9 + 0.1 * ((led as f64 * 12.9898).sin() * 43758.5453).fract().abs())
    }
}

/// The light of the LEDs of one row or column of the panel along it, `[led, pixel]`: a bright middle and a faint skirt.
/// The light of an LED on the panel is the product of both.
fn profiles(leds: usize, width: f64) -> Array2<f64> {
    Array2::from_shape_fn((leds, leds * PITCH), |(led, pixel)| {
        let distance = (pixel as f64 + 0.5 - (led as f64 + 0.5) * PITCH as f64).abs();
        let skirt = (1.0 - distance / RADIUS).max(0.0).powi(2);
        if distance < RADIUS { 0.98 * (-0.5 * (distance / width).powi(2)).exp() + 0.02 * skirt } else { 0.0 }
    })
}

/// The sparse A of one colour, as what it is made of: element (pixel, LED) is `PEAK * brightness * along_y * along_x`.
struct Light {
    panel: Panel,
    brightness: Array1<f64>,
    along_x: Array2<f64>,
    along_y: Array2<f64>,
}

impl Light {
    fn new(panel: Panel, width: f64) -> Self {
        let [along_x, along_y] = [panel.columns, panel.rows].map(|leds| profiles(leds, width));
        Self { panel, brightness: panel.brightness(), along_x, along_y }
    }

    /// `A x`: the picture `[y, x]` that LED values give.
    fn picture(&self, values: &[f64]) -> Array2<f64> {
        let Panel { columns, rows } = self.panel;
        let values = Array2::from_shape_fn((rows, columns), |(row, column)| {
            let led = row * columns + column;
            PEAK * self.brightness[led] * values[led]
        });
        self.along_y.t().dot(&values).dot(&self.along_x)
    }

    /// `A^T b`: the light of each LED times a picture.
    fn transposed(&self, picture: &Array2<f64>) -> Vec<f64> {
        let products = self.along_y.dot(picture).dot(&self.along_x.t());
        products.iter().zip(&self.brightness).map(|(product, brightness)| PEAK * brightness * product).collect()
    }

    /// The upper diagonals of `A^T A`, by offset: element j is that of column j.
    fn normal_diagonals(&self) -> BTreeMap<usize, Vec<f64>> {
        let Panel { columns, rows } = self.panel;
        let (of_x, of_y) = (self.along_x.dot(&self.along_x.t()), self.along_y.dot(&self.along_y.t()));
        let mut diagonals = BTreeMap::new();
        for (first, second) in (0..columns * rows).flat_map(|first| {
            let last = (first + REACH * (columns + 1)).min(columns * rows - 1);
            (first..=last).map(move |second| (first, second))
        }) {
            let overlap = of_y[[first / columns, second / columns]] * of_x[[first % columns, second % columns]];
            if overlap > 0.0 {
                let element = PEAK * PEAK * self.brightness[first] * self.brightness[second] * overlap;
                diagonals.entry(second - first).or_insert_with(|| vec![0.0; columns * rows])[second] = element;
            }
        }
        let main = diagonals.get_mut(&0).expect("every LED lights some pixels");
        let added = REGULARISATION * main.iter().copied().fold(0.0, f64::max);
        main.iter_mut().for_each(|element| *element += added);
        diagonals
    }
}

/// The image sequence `[frame, colour, y, x]`, 8-bit grey levels: coloured discs that move over a gradient and bars.
fn targets(panel: Panel) -> Array4<f64> {
    let (height, width) = panel.pixels();
    Array4::from_shape_fn((FRAMES, 3, height, width), |(frame, colour, y, x)| {
        let time = frame as f64 / FRAMES as f64;
        let (u, v) = (x as f64 / width as f64, y as f64 / height as f64);
        let angle = TAU * (time + colour as f64 / 3.0);
        let aspect = width as f64 / height as f64;
        let distance = ((u - 0.5 - 0.3 * angle.cos()) * aspect).hypot(v - 0.5 - 0.25 * angle.sin());
        let disc = 170.0 / (1.0 + ((distance - 0.28) * panel.rows as f64).exp());
        let gradient = 40.0 * (u + time).fract();
        let bars = 45.0 * (0.5 + 0.5 * (TAU * (y as f64 / (8 * PITCH) as f64 + 2.0 * time)).sin());
        (disc + gradient + bars).round().min(255.0)
    })
}

/// `A^T A + c I` of each colour, `A^T b` `[frame, colour, led]`, and how they came about.
struct Problem {
    panel: Panel,
    lights: Vec<Light>,
    targets: Array4<f64>,
    matrix: SymmetricBlockMatrix,
    right: Array3<f32>,
    diagonals: usize,
}

impl Problem {
    fn new(panel: Panel) -> ferrotile::Result<Self> {
        let lights: Vec<Light> = WIDTHS.iter().map(|&width| Light::new(panel, width)).collect();
        let of_colours: Vec<_> = lights.iter().map(Light::normal_diagonals).collect();
        let offsets: Vec<usize> = of_colours[0].keys().copied().collect();
        let data = Array3::from_shape_fn((3, offsets.len(), panel.leds()), |(colour, k, j)| {
            of_colours[colour].get(&offsets[k]).map_or(0.0, |diagonal| diagonal[j]) as f32
        });
        let numbers: Vec<i64> = offsets.iter().map(|&offset| offset as i64).collect();
        let matrix = SymmetricBlockMatrix::from_diagonals(panel.leds(), &numbers, data.view())?;
        let targets = targets(panel);
        let mut right = Array3::zeros((FRAMES, 3, panel.leds()));
        for ((frame, colour), mut vector) in lanes(&mut right) {
            let picture = targets.slice(s![frame, colour, .., ..]).to_owned();
            vector.iter_mut().zip(lights[colour].transposed(&picture)).for_each(|(to, from)| *to = from as f32);
        }
        let diagonals = offsets.last().map_or(0, |last| last + 1);
        Ok(Self { panel, lights, targets, matrix, right, diagonals })
    }

    /// The picture `[frame, colour, y, x]` that LED values `[frame, colour, led]` give.
    fn pictures(&self, values: &Array3<f32>) -> Array4<f64> {
        let mut pictures = Array4::zeros(self.targets.dim());
        for ((frame, colour), vector) in lanes(&mut values.clone()) {
            let values: Vec<f64> = vector.iter().map(|&value| value.into()).collect();
            pictures.slice_mut(s![frame, colour, .., ..]).assign(&self.lights[colour].picture(&values));
        }
        pictures
    }

    /// The largest relative residual of a system in f64, and that of `|A^T A| |x|`, both as shares of the norm of
    /// `A^T b`.
    fn residual(&self, values: &Array3<f32>) -> (f64, f64) {
        let blocks = self.matrix.blocks().mapv(f64::from);
        let (x, b) = (values.mapv(f64::from), self.right.mapv(f64::from));
        let residual = &b - &reference::ata_blocks(blocks.view(), x.view());
        let magnitude = reference::ata_blocks(blocks.mapv(f64::abs).view(), x.mapv(f64::abs).view());
        let norms = |array: &Array3<f64>| array.map_axis(Axis(2), |vector| vector.dot(&vector).sqrt());
        let largest = |array: &Array3<f64>| (norms(array) / norms(&b)).iter().copied().fold(0.0, f64::max);
        (largest(&residual), largest(&magnitude))
    }
}

/// The last dimension of each frame and colour.
fn lanes(array: &mut Array3<f32>) -> impl Iterator<Item = ((usize, usize), ndarray::ArrayViewMut1<'_, f32>)> {
    array.outer_iter_mut().enumerate().flat_map(|(frame, of_frame)| {
        of_frame.into_outer_iter_mut().enumerate().map(move |(colour, vector)| ((frame, colour), vector))
    })
}

/// The solution in one precision, and what it took.
struct Fit {
    precision: Precision,
    values: Array3<f32>,
    iterations: u32,
    residual: f64,
    bound: f64,
    milliseconds: f64,
}

impl Fit {
    fn new(gpu: &Gpu, problem: &Problem, precision: Precision) -> ferrotile::Result<Self> {
        let stream = gpu.new_stream()?;
        let matrix = problem.matrix.upload_blocking(&stream, precision)?;
        let options = CgOptions { tolerance: TOLERANCE, ..CgOptions::default() };
        let mut plan = CgPlan::new(&matrix, FRAMES, &options)?;
        let shape = <[usize; 3]>::from(problem.right.dim());
        let right = Buffer::upload_array_blocking(&stream, problem.right.view())?;
        let mut values = Buffer::zeroed(gpu, right.len())?;
        let mut solve = || {
            let (b, x) = (TensorRef::contiguous(&right, shape)?, TensorMut::contiguous(&mut values, shape)?);
            let start = Instant::now();
            plan.solve_blocking(&stream, b, None, x).map(|report| (report, start.elapsed()))
        };
        let (report, first) = solve()?;
        // A card is measured once it is warm; the emulator takes its time.
        let time = if gpu.is_emulated() {
            first
        } else {
            (0..20).map(|_| solve()).try_fold(first, |least, next| next.map(|(_, time)| least.min(time)))?
        };
        let values = values.download_array_blocking(&stream, shape)?;
        let milliseconds = time.as_secs_f64() * 1e3;
        let (residual, magnitude) = problem.residual(&values);
        // The solver's products round too, in f32; a system that has not converged is beyond every bound.
        let bound = TOLERANCE + 16.0 * f64::from(f32::EPSILON) * magnitude;
        let residual = if report.all_converged() { residual } else { f64::INFINITY };
        Ok(Self { precision, values, iterations: report.iterations(), residual, bound, milliseconds })
    }

    /// Whether the residual is within its bound, and the iterations are within 10 % of those of f32, rounded up to
    /// whole ones.
    fn holds(&self, of_f32: u32) -> bool {
        let as_many = self.iterations.abs_diff(of_f32) <= of_f32.div_ceil(10);
        self.residual <= self.bound && (as_many || self.precision == Precision::Bf16)
    }
}

/// Writes target, fit and error (dark is none, 16 grey levels are white) side by side, a row a frame.
fn write_picture(path: &Path, problem: &Problem, fitted: &Array4<f64>) -> Result<(), Box<dyn Error>> {
    let (height, width) = problem.panel.pixels();
    let mut bytes = Vec::with_capacity(FRAMES * height * 3 * width * 3);
    for (frame, y, column) in
        (0..FRAMES * height).flat_map(|line| (0..3 * width).map(move |x| (line / height, line % height, x)))
    {
        let x = column % width;
        for colour in 0..3 {
            let index = [frame, colour, y, x];
            let (target, fit) = (problem.targets[index], fitted[index].clamp(0.0, 255.0));
            let level = [target, fit, 16.0 * (target - fit).abs()][column / width];
            // The cast saturates.
            bytes.push(level.round() as u8);
        }
    }
    let mut encoder =
        png::Encoder::new(BufWriter::new(File::create(path)?), 3 * width as u32, (FRAMES * height) as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&bytes)?;
    Ok(writer.finish()?)
}

/// Fits a panel in every precision, prints a line for each, and writes the picture.
fn run(gpu: &Gpu, panel: Panel, path: &Path) -> Result<(), Box<dyn Error>> {
    let problem = Problem::new(panel)?;
    let largest = problem.matrix.blocks().iter().fold(0f32, |largest, element| largest.max(element.abs()));
    println!("device: {gpu}");
    println!("{} LEDs, {FRAMES} frames of {:?} pixels, 3 colours", panel.leds(), problem.panel.pixels());
    println!(
        "A^T A: {} diagonals, {} block diagonals, {:.0} % of their blocks occupied, elements up to {largest:.2e}",
        problem.diagonals,
        problem.matrix.block_diagonals(),
        100.0 * problem.matrix.occupancy()
    );
    println!(
        "{:9} {:>10} {:>12} {:>12} {:>9} {:>13}",
        "precision", "iterations", "residual", "bound", "ms", "us/iteration"
    );
    let fits = Precision::ALL.map(|precision| Fit::new(gpu, &problem, precision));
    let fits = fits.into_iter().collect::<Result<Vec<_>, _>>()?;
    let of_f32 = fits.iter().find(|fit| fit.precision == Precision::F32).map_or(0, |fit| fit.iterations);
    for Fit { precision, iterations, residual, bound, milliseconds, .. } in &fits {
        let each = milliseconds * 1e3 / f64::from((*iterations).max(1));
        println!("{precision:9} {iterations:10} {residual:12.3e} {bound:12.3e} {milliseconds:9.3} {each:13.2}");
    }
    let default = fits.iter().find(|fit| fit.precision == Precision::default()).ok_or("the default is a precision")?;
    let fitted = problem.pictures(&default.values);
    let error = (&problem.targets - &fitted).mapv(f64::abs).mean().unwrap_or(0.0);
    println!("mean error of the fit: {error:.2} grey levels of 255");
    write_picture(path, &problem, &fitted)?;
    println!("target, fit and error: {}", path.display());
    match fits.iter().find(|fit| !fit.holds(of_f32)) {
        None => Ok(()),
        Some(fit) => {
            Err(format!("{} needs other iterations than f32, or leaves more than its bound", fit.precision).into())
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("led_fit.png"), PathBuf::from);
    match Gpu::all()?.first() {
        Some(gpu) => run(gpu, FULL, &path),
        None => {
            println!("no CUDA device here: the emulator fits a small panel");
            run(&Gpu::emulated(Arch::Sm80), SMALL, &path)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_and_the_right_side_are_those_of_the_light() {
        let problem = Problem::new(SMALL).unwrap();
        let dense = problem.matrix.to_dense();
        for colour in 0..3 {
            let light = &problem.lights[colour];
            let columns: Vec<Array2<f64>> = (0..SMALL.leds())
                .map(|led| {
                    light.picture(&Vec::from_iter((0..SMALL.leds()).map(|other| f64::from(u8::from(other == led)))))
                })
                .collect();
            let largest = f64::from(dense[[colour, 0, 0]]);
            for (first, second) in (0..SMALL.leds()).flat_map(|first| (0..first).map(move |second| (first, second))) {
                let expected = (&columns[first] * &columns[second]).sum();
                assert!((f64::from(dense[[colour, first, second]]) - expected).abs() < 1e-6 * largest);
            }
            for (led, column) in columns.iter().enumerate() {
                let expected = (column * &problem.targets.slice(s![2, colour, .., ..])).sum();
                assert!((f64::from(problem.right[[2, colour, led]]) / expected - 1.0).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn the_full_panel_has_the_bandwidth_that_is_said() {
        let problem = Problem::new(FULL).unwrap();
        assert_eq!((FULL.leds(), problem.diagonals), (2622, 421));
    }

    #[test]
    fn a_small_panel_is_fitted_in_the_emulator() {
        let path = std::env::temp_dir().join(format!("ferrotile-led-fit-{}.png", std::process::id()));
        run(&Gpu::emulated(Arch::Sm80), SMALL, &path).unwrap();
        let decoder = png::Decoder::new(std::io::BufReader::new(File::open(&path).unwrap()));
        let reader = decoder.read_info().unwrap();
        let (height, width) = SMALL.pixels();
        assert_eq!((reader.info().height, reader.info().width), ((FRAMES * height) as u32, 3 * width as u32));
        drop(reader);
        std::fs::remove_file(path).unwrap();
    }
}
