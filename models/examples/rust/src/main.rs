//! Classifies rows of numbers: prints the class and the scores of each row of a file of float32.
//!
//! ```sh
//! tcc compile classifier.onnx --package package   # x: f32[rows, columns] to y: f32[rows, classes]
//! cargo install --offline --path . --root app
//! install -D -m 644 -t app/lib package/lib/classifier.so*
//! app/bin/classify rows.bin
//! ```
//!
//! The folder app may move.  With `--emit static` the program needs no library: leave out `install`.
use std::cmp::Ordering;
use std::convert::TryInto;
use std::{env, error, fs, process};

use tcc_classifier::{input, load, output};

fn read_floats(path: &str) -> Result<Vec<f32>, String> {
    let bytes = fs::read(path).map_err(|error| format!("{} cannot be read: {}", path, error))?;
    Ok(bytes.chunks_exact(4).map(|word| f32::from_ne_bytes(word.try_into().unwrap())).collect())
}

fn classify(path: &str) -> Result<(), Box<dyn error::Error>> {
    let model = load()?;
    let values = read_floats(path)?;
    let columns = input::X.shape()[1];
    let rows = values.len() as i64 / columns;
    let results = model.run(&[input::X.with_shape(&values, &[rows, columns])?])?;
    let classes = results.shape(output::Y)[1] as usize;
    for scores in results.get(output::Y).chunks(classes) {
        let larger = |&a: &usize, &b: &usize| scores[a].partial_cmp(&scores[b]).unwrap_or(Ordering::Equal);
        let best = (0..classes).max_by(larger).unwrap_or(0);
        let texts: Vec<String> = scores.iter().map(f32::to_string).collect();
        println!("{}: {}", best, texts.join(" "));
    }
    Ok(())
}

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if arguments.len() != 2 {
        eprintln!("usage: classify FILE");
        process::exit(2);
    }
    if let Err(error) = classify(&arguments[1]) {
        eprintln!("error: {}", error);
        process::exit(1);
    }
}
