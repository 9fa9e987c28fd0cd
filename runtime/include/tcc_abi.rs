//! The structs of tcc.h, which no other crate sees.

use std::os::raw::{c_char, c_int, c_void};

use crate::tcc_elements::DType;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawDevice {
    pub kind: i32,
    pub id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawTensor {
    pub data: *mut c_void,
    pub device: RawDevice,
    pub ndim: i32,
    pub dtype: DType,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

#[repr(C)]
pub struct RawString {
    pub data: *const c_char,
    pub size: i64,
}

#[repr(C)]
pub struct RawPort {
    pub name: *const c_char,
    pub dtype: DType,
    pub ndim: i32,
    pub shape: *const i64,
    pub text: *const c_char,
    pub state: i32,
}

#[repr(C)]
pub struct RawAllocator {
    pub context: *mut c_void,
    pub allocate: unsafe extern "C" fn(*mut c_void, i32, *const RawTensor, *mut *mut c_void) -> c_int,
}

#[repr(C)]
pub struct RawModel {
    pub unknown: [u8; 0],
}

#[repr(C)]
pub struct RawInstance {
    pub unknown: [u8; 0],
}

pub type RawRun<T> = unsafe extern "C" fn(
    *mut T,
    *const RawTensor,
    i32,
    *mut RawTensor,
    i32,
    *const RawAllocator,
    *mut c_void,
) -> c_int;
pub type RawDescribe = unsafe extern "C" fn(*const RawModel, i32, *mut RawPort) -> c_int;
/// A function of the table that this file does not call.
pub type Uncalled = *const c_void;

/// The table of functions, whose order is tcc.h's.
#[repr(C)]
#[allow(dead_code)]
pub struct Api {
    pub struct_size: u32,
    pub version: u32,
    pub model_get: unsafe extern "C" fn(*mut *mut RawModel) -> c_int,
    pub model_release: unsafe extern "C" fn(*mut RawModel),
    pub model_set_threads: unsafe extern "C" fn(*mut RawModel, i32) -> c_int,
    pub input_count: unsafe extern "C" fn(*const RawModel) -> i32,
    pub output_count: unsafe extern "C" fn(*const RawModel) -> i32,
    pub input_port: RawDescribe,
    pub output_port: RawDescribe,
    pub manifest: unsafe extern "C" fn(*mut usize) -> *const c_char,
    pub instance_create: unsafe extern "C" fn(*mut RawModel, u32, *mut *mut RawInstance) -> c_int,
    pub instance_set_threads: unsafe extern "C" fn(*mut RawInstance, i32) -> c_int,
    pub instance_destroy: unsafe extern "C" fn(*mut RawInstance),
    pub run: RawRun<RawInstance>,
    pub call: RawRun<RawModel>,
    pub statistics: Uncalled,
    pub model_trim: unsafe extern "C" fn(*mut RawModel),
    pub last_error: unsafe extern "C" fn() -> *const c_char,
    pub times: Uncalled,
    pub model_variant: Uncalled,
    pub instance_set_poll: Uncalled,
    pub process_set_memory_limit: unsafe extern "C" fn(u64) -> c_int,
    pub instance_set_memory_limit: unsafe extern "C" fn(*mut RawInstance, u64) -> c_int,
    pub memory: Uncalled,
    pub instance_set_pool: Uncalled,
    pub pools: Uncalled,
    pub result_pool: Uncalled,
    pub instance_create_on: Uncalled,
    pub model_ranks: Uncalled,
    pub instance_seed: unsafe extern "C" fn(*mut RawInstance, u64) -> c_int,
    pub instance_unseed: unsafe extern "C" fn(*mut RawInstance) -> c_int,
    pub instance_cancel: unsafe extern "C" fn(*mut RawInstance) -> c_int,
    pub instance_next_run: Uncalled,
    pub instance_cancel_run: Uncalled,
    pub model_get_on: Uncalled,
    pub instance_set_stamps: Uncalled,
    pub model_asset: unsafe extern "C" fn(*const c_char, *mut *const c_char, *mut usize) -> c_int,
}
