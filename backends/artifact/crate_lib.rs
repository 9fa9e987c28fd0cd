//! @NAME@: a model compiled by tcc. The module `tcc` explains the interface.
#![allow(non_snake_case)]

mod tcc;

pub use tcc::*;

extern "C" {
    fn @NAME@_api() -> *const Api;
}

/// Loads the model, if it is not loaded yet.
pub fn load() -> Result<Model, Error> {
    unsafe { Model::new(@NAME@_api()) }
}
@PORTS@
