//! The program looks for the library of a model in ../lib, where it is installed.
fn main() {
    println!("cargo:rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib");
}
