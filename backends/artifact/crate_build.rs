//! Links the model of this package, and tells crates that depend on it the library's folder.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::{env, fs};

fn main() {
    let package = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap()).join("../..");
    let file = package.join("lib").join("@FILE@");
    let file = file.canonicalize().unwrap_or_else(|error| {
        panic!("{} cannot be read ({}): copy the whole package", file.display(), error)
    });
    // Linkers look for libNAME. Programs that cargo starts load the library by the name of its file.
    let out = PathBuf::from(env::var("OUT_DIR").unwrap());
    for name in &["lib@FILE@", "@FILE@"] {
        let link = out.join(name);
        let _ = fs::remove_file(&link); // of an earlier build
        symlink(&file, &link).unwrap_or_else(|error| panic!("{}: {}", link.display(), error));
    }
    println!("cargo:rustc-link-search=native={}", out.display());
    let kind = if "@FILE@".ends_with(".a") { "static" } else { "dylib" };
    println!("cargo:rustc-link-lib={}=@NAME@", kind);
    for flag in "@LIBRARIES@".split_whitespace() {
        println!("cargo:rustc-link-lib={}", &flag["-l".len()..]);
    }
    // Build scripts of crates that depend on this crate read it as DEP_TCC_NAME_LIB, in capitals.
    println!("cargo:lib={}", file.parent().unwrap().display());
    println!("cargo:rerun-if-changed={}", file.display());
}
