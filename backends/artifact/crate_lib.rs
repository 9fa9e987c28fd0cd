//! @NAME@: a model compiled by tcc. src/tcc.rs explains the interface.
#![allow(non_snake_case)]

mod tcc;
mod tcc_abi;
mod tcc_elements;

pub use tcc::*;
pub use tcc_elements::*;

extern "C" {
    fn @NAME@_api() -> *const tcc_abi::Api;
}

/// Loads the model, if it is not loaded yet.
pub fn load() -> Result<Model, Error> {
    unsafe { Model::new(@NAME@_api()) }
}
@PORTS@
