//! The interface of a compiled model, over the table of functions of tcc.h.
//!
//! ```ignore
//! use tcc_mlp::{input, load, output};
//!
//! let model = load()?;
//! let results = model.run(&[input::X.of(&[0.0; 784])?])?;
//! let scores: &[f32] = results.get(output::Y);
//! ```
//!
//! Errors.  A function that can fail returns a `Result`; an `Error` has the status and the message.
//!
//! Ownership.  An `Argument` borrows the caller's values.  `Results` own their memory.  An output that
//! updates an input in place is that input: its values are borrowed mutably, and read there after the run.
//! Instances and copies of a model keep the model loaded.
//!
//! Threads.  As in tcc.h: a `Model` may be used from any thread, an `Instance` serves one run at a time.

use std::alloc::{alloc, dealloc, Layout};
use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::mem::{size_of, size_of_val};
use std::os::raw::{c_char, c_int, c_void};
use std::sync::Arc;
use std::{fmt, ptr, slice};

use crate::tcc_abi::*;
use crate::tcc_elements::{byte_count, DType, Element, STRINGS};

// ---- errors --------------------------------------------------------------------------------------------

/// Why a call failed: the values of `tcc_status`.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    InvalidArgument,
    OutOfMemory,
    Unsupported,
    Corrupt,
    Internal,
    Device,
    Cancelled,
    Timeout,
    PeerDead,
    Mismatch,
    System,
    /// A status of a later version of tcc.
    Unknown(i32),
}

impl Status {
    fn of(code: c_int) -> Status {
        match code {
            1 => Status::InvalidArgument,
            2 => Status::OutOfMemory,
            3 => Status::Unsupported,
            4 => Status::Corrupt,
            5 => Status::Internal,
            6 => Status::Device,
            7 => Status::Cancelled,
            8 => Status::Timeout,
            9 => Status::PeerDead,
            10 => Status::Mismatch,
            11 => Status::System,
            _ => Status::Unknown(code),
        }
    }
}

/// A failed call.  `Display` shows the message.
#[derive(Clone, Debug)]
pub struct Error {
    status: Status,
    message: String,
}

impl Error {
    pub fn status(&self) -> Status {
        self.status
    }

    fn invalid(message: String) -> Error {
        Error { status: Status::InvalidArgument, message }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

unsafe fn text_of(text: *const c_char) -> String {
    CStr::from_ptr(text).to_string_lossy().into_owned()
}

/// Reads the message on the thread of the call, before its next call.
fn check(api: &Api, code: c_int) -> Result<(), Error> {
    if code == 0 {
        return Ok(());
    }
    Err(Error { status: Status::of(code), message: unsafe { text_of((api.last_error)()) } })
}

// ---- ports ---------------------------------------------------------------------------------------------

/// An input or output of a model.  A size in `shape` that only a run knows is -1.
#[derive(Clone, Debug)]
pub struct Port {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<i64>,
    /// The shape with the names of its sizes.
    pub text: String,
}

/// The values of one input of a run.
pub struct Argument<'a> {
    index: usize,
    data: *mut c_void,
    dtype: DType,
    shape: Vec<i64>,
    _strings: Vec<RawString>,
    _values: PhantomData<&'a mut ()>,
}

fn argument<'a>(
    index: usize,
    name: &str,
    dtype: DType,
    values: (*mut c_void, usize),
    strings: Vec<RawString>,
    shape: &[i64],
) -> Result<Argument<'a>, Error> {
    let (data, bytes) = values;
    if byte_count(dtype, shape) != Some(bytes) {
        return Err(Error::invalid(format!(
            "input {} has the shape {:?}, and its values have {} bytes of elements of {} bits",
            name, shape, bytes, dtype.bits
        )));
    }
    Ok(Argument { index, data, dtype, shape: shape.to_vec(), _strings: strings, _values: PhantomData })
}

macro_rules! port {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<T> {
            index: usize,
            name: &'static str,
            shape: &'static [i64],
            element: PhantomData<T>,
        }

        #[allow(dead_code)]
        impl<T> $name<T> {
            pub(crate) const fn new(index: usize, name: &'static str, shape: &'static [i64]) -> Self {
                $name { index, name, shape, element: PhantomData }
            }

            /// Returns the name in the model.
            pub fn name(&self) -> &'static str {
                self.name
            }

            /// Returns the sizes; a size that only a run knows is -1.
            pub fn shape(&self) -> &'static [i64] {
                self.shape
            }
        }
    };
}

port! {
    /// An input with elements of type T.
    Input
}
port! {
    /// An input with elements of type T that a run updates in place.
    StateInput
}
port! {
    /// An output with elements of type T.
    Output
}

impl<T: Element> Input<T> {
    /// Views `values` as this input, whose sizes are fixed.  Fails where their number is not the shape's.
    pub fn of<'a>(&self, values: &'a [T]) -> Result<Argument<'a>, Error> {
        self.with_shape(values, self.shape)
    }

    /// Views `values` as this input, with `shape`.  Fails where their number is not the shape's.
    pub fn with_shape<'a>(&self, values: &'a [T], shape: &[i64]) -> Result<Argument<'a>, Error> {
        let data = values.as_ptr() as *mut c_void; // a run only reads it
        argument(self.index, self.name, T::DTYPE, (data, size_of_val(values)), Vec::new(), shape)
    }
}

impl<T: Element> StateInput<T> {
    /// Views `values` as this input, whose sizes are fixed.  Fails where their number is not the shape's.
    pub fn of<'a>(&self, values: &'a mut [T]) -> Result<Argument<'a>, Error> {
        self.with_shape(values, self.shape)
    }

    /// Views `values` as this input, with `shape`.  Fails where their number is not the shape's.
    pub fn with_shape<'a>(&self, values: &'a mut [T], shape: &[i64]) -> Result<Argument<'a>, Error> {
        let bytes = size_of_val(values);
        let data = values.as_mut_ptr() as *mut c_void;
        argument(self.index, self.name, T::DTYPE, (data, bytes), Vec::new(), shape)
    }
}

impl Input<String> {
    /// Views strings as this input, with `shape`.  Fails where their number is not the shape's.
    pub fn of_strings<'a>(&self, values: &'a [&'a str], shape: &[i64]) -> Result<Argument<'a>, Error> {
        let mut strings: Vec<RawString> = values
            .iter()
            .map(|text| RawString { data: text.as_ptr() as *const c_char, size: text.len() as i64 })
            .collect();
        let data = (strings.as_mut_ptr() as *mut c_void, strings.len() * size_of::<RawString>());
        argument(self.index, self.name, STRINGS, data, strings, shape)
    }
}

// ---- results -------------------------------------------------------------------------------------------

struct Array {
    memory: *mut u8,
    layout: Layout,
    values: *const c_void,
    dtype: DType,
    shape: Vec<i64>,
}

// It owns its memory, and nobody changes it after the run.
unsafe impl Send for Array {}
unsafe impl Sync for Array {}

impl Array {
    const ALIGNMENT: usize = 64;

    unsafe fn allocate(wanted: &RawTensor) -> Option<Array> {
        let shape = shape_of(wanted.shape, wanted.ndim);
        let bytes = byte_count(wanted.dtype, &shape)?;
        let layout = Layout::from_size_align(bytes.max(1), Array::ALIGNMENT).ok()?;
        let memory = alloc(layout);
        if memory.is_null() {
            return None;
        }
        Some(Array { memory, layout, values: memory as *const c_void, dtype: wanted.dtype, shape })
    }

    /// Reads the descriptor with which the memory of strings begins.
    unsafe fn unpack(&mut self) {
        let tensor = *(self.memory as *const RawTensor);
        self.values = (tensor.data as *const u8).add(tensor.byte_offset as usize) as *const c_void;
        self.shape = shape_of(tensor.shape, tensor.ndim);
        self.dtype = tensor.dtype;
    }

    /// Returns the elements.  The table promises the port's type, so another type is a fault of tcc.
    fn elements<T>(&self, dtype: DType) -> &[T] {
        assert_eq!(self.dtype, dtype, "the model returned another element type than its port's");
        let bytes = byte_count(self.dtype, &self.shape).expect("the array is in memory");
        unsafe { slice::from_raw_parts(self.values as *const T, bytes / size_of::<T>()) }
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        unsafe { dealloc(self.memory, self.layout) }
    }
}

unsafe fn shape_of(shape: *const i64, ndim: i32) -> Vec<i64> {
    if ndim <= 0 {
        return Vec::new();
    }
    slice::from_raw_parts(shape, ndim as usize).to_vec()
}

/// Gives a run the memory of an output; it must not panic, for C called it.
unsafe extern "C" fn allocate(
    context: *mut c_void,
    output: i32,
    wanted: *const RawTensor,
    out_data: *mut *mut c_void,
) -> c_int {
    let arrays = &mut *(context as *mut Vec<Option<Array>>);
    match (arrays.get_mut(output as usize), Array::allocate(&*wanted)) {
        (Some(place), Some(array)) => {
            *out_data = array.memory as *mut c_void;
            *place = Some(array);
            0
        }
        _ => 1,
    }
}

/// The outputs of a run, but for those that update an input in place.
pub struct Results {
    arrays: Vec<Option<Array>>,
}

impl Results {
    /// Returns the elements of an output.
    pub fn get<T: Element>(&self, output: Output<T>) -> &[T] {
        self.arrays[output.index].as_ref().map_or(&[], |array| array.elements(T::DTYPE))
    }

    /// Returns the strings of an output, which are UTF-8 as a rule.
    pub fn strings(&self, output: Output<String>) -> Vec<&[u8]> {
        let array = self.arrays[output.index].as_ref();
        let strings: &[RawString] = array.map_or(&[], |array| array.elements(STRINGS));
        strings
            .iter()
            .map(|text| match text.size {
                0 => &[] as &[u8],
                size => unsafe { slice::from_raw_parts(text.data as *const u8, size as usize) },
            })
            .collect()
    }

    /// Returns the shape of an output.
    pub fn shape<T>(&self, output: Output<T>) -> &[i64] {
        self.arrays[output.index].as_ref().map_or(output.shape, |array| &array.shape)
    }
}

// ---- models --------------------------------------------------------------------------------------------

struct Loaded {
    api: &'static Api,
    model: *mut RawModel,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
}

// tcc.h: a model may be used from any number of threads.
unsafe impl Send for Loaded {}
unsafe impl Sync for Loaded {}

impl Drop for Loaded {
    fn drop(&mut self) {
        unsafe { (self.api.model_release)(self.model) }
    }
}

impl Loaded {
    fn ports(&self, count: i32, describe: RawDescribe) -> Result<Vec<Port>, Error> {
        (0..count)
            .map(|index| unsafe {
                let mut port: RawPort = std::mem::zeroed();
                check(self.api, describe(self.model, index, &mut port))?;
                Ok(Port {
                    name: text_of(port.name),
                    dtype: port.dtype,
                    shape: shape_of(port.shape, port.ndim),
                    text: text_of(port.text),
                })
            })
            .collect()
    }

    /// Returns the arguments in the order of the ports.
    fn tensors(&self, arguments: &[Argument<'_>]) -> Result<Vec<RawTensor>, Error> {
        let mut tensors = Vec::new();
        for (index, port) in self.inputs.iter().enumerate() {
            let mut matching = arguments.iter().filter(|argument| argument.index == index);
            let (first, second) = (matching.next(), matching.next());
            let argument = first.ok_or_else(|| Error::invalid(format!("no input {} was given", port.name)))?;
            if second.is_some() {
                return Err(Error::invalid(format!("input {} was given twice", port.name)));
            }
            tensors.push(RawTensor {
                data: argument.data,
                device: RawDevice { kind: 1, id: 0 },
                ndim: argument.shape.len() as i32,
                dtype: argument.dtype,
                shape: argument.shape.as_ptr() as *mut i64,
                strides: ptr::null_mut(),
                byte_offset: 0,
            });
        }
        Ok(tensors)
    }

    fn run<T>(&self, function: RawRun<T>, object: *mut T, arguments: &[Argument<'_>]) -> Result<Results, Error> {
        let tensors = self.tensors(arguments)?;
        let mut arrays: Vec<Option<Array>> = self.outputs.iter().map(|_| None).collect();
        let allocator = RawAllocator { context: &mut arrays as *mut _ as *mut c_void, allocate };
        let length = tensors.len() as i32;
        let none = ptr::null_mut();
        let code = unsafe { function(object, tensors.as_ptr(), length, none, 0, &allocator, ptr::null_mut()) };
        check(self.api, code)?;
        for (port, array) in self.outputs.iter().zip(&mut arrays) {
            if let (3, Some(array)) = (port.dtype.code, array) {
                unsafe { array.unpack() }
            }
        }
        Ok(Results { arrays })
    }
}

/// A loaded model.  Copies share it, and the last one unloads it.
#[derive(Clone)]
pub struct Model {
    loaded: Arc<Loaded>,
}

impl Model {
    /// Loads the model of a table.
    ///
    /// # Safety
    /// `api` is the table of a model, which lives until the process ends.
    pub(crate) unsafe fn new(api: *const Api) -> Result<Model, Error> {
        let api = &*api;
        if api.version != 1 || (api.struct_size as usize) < size_of::<Api>() {
            let message = "the model has another version of the interface than its crate".to_string();
            return Err(Error { status: Status::Unsupported, message });
        }
        let mut model = ptr::null_mut();
        check(api, (api.model_get)(&mut model))?;
        let mut loaded = Loaded { api, model, inputs: Vec::new(), outputs: Vec::new() };
        loaded.inputs = loaded.ports((api.input_count)(model), api.input_port)?;
        loaded.outputs = loaded.ports((api.output_count)(model), api.output_port)?;
        Ok(Model { loaded: Arc::new(loaded) })
    }

    pub fn inputs(&self) -> &[Port] {
        &self.loaded.inputs
    }

    pub fn outputs(&self) -> &[Port] {
        &self.loaded.outputs
    }

    /// Returns the manifest, which is JSON.
    pub fn manifest(&self) -> &'static str {
        let mut size = 0;
        unsafe {
            let text = (self.loaded.api.manifest)(&mut size) as *const u8;
            std::str::from_utf8(slice::from_raw_parts(text, size)).expect("the manifest is ASCII")
        }
    }

    /// Returns a file that the artifact holds beside the model, as in "tokenizer.json".  Fails where it
    /// has no asset of this name, and where the asset is damaged.
    pub fn asset(&self, name: &str) -> Result<&'static [u8], Error> {
        let text = CString::new(name).map_err(|_| Error::invalid("an asset's name has no zero byte".to_string()))?;
        let (api, mut data, mut size) = (self.loaded.api, ptr::null(), 0);
        check(api, unsafe { (api.model_asset)(text.as_ptr(), &mut data, &mut size) })?;
        Ok(if size == 0 { &[] } else { unsafe { slice::from_raw_parts(data as *const u8, size) } })
    }

    /// Sets the threads of later runs; 0 is the default.
    pub fn set_threads(&self, threads: i32) -> Result<(), Error> {
        let loaded = &self.loaded;
        check(loaded.api, unsafe { (loaded.api.model_set_threads)(loaded.model, threads) })
    }

    /// Runs the model, from any thread.  `arguments` has each input once, in any order.
    pub fn run(&self, arguments: &[Argument<'_>]) -> Result<Results, Error> {
        self.loaded.run(self.loaded.api.call, self.loaded.model, arguments)
    }
}

struct Memory {
    model: Model,
    instance: *mut RawInstance,
}

// tcc.h: an instance serves one run at a time, on any thread; it may be cancelled from another one.
unsafe impl Send for Memory {}
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        unsafe { (self.model.loaded.api.instance_destroy)(self.instance) }
    }
}

/// A model's memory for one run at a time.
pub struct Instance {
    memory: Arc<Memory>,
}

impl Instance {
    pub fn new(model: &Model) -> Result<Instance, Error> {
        let (api, mut instance) = (model.loaded.api, ptr::null_mut());
        check(api, unsafe { (api.instance_create)(model.loaded.model, 0, &mut instance) })?;
        Ok(Instance { memory: Arc::new(Memory { model: model.clone(), instance }) })
    }

    fn call(&self, function: impl FnOnce(&Api, *mut RawInstance) -> c_int) -> Result<(), Error> {
        let api = self.memory.model.loaded.api;
        check(api, function(api, self.memory.instance))
    }

    /// Sets the threads of later runs; 0 is the default.
    pub fn set_threads(&mut self, threads: i32) -> Result<(), Error> {
        self.call(|api, instance| unsafe { (api.instance_set_threads)(instance, threads) })
    }

    /// Sets the seed of the random numbers of later runs.
    pub fn seed(&mut self, seed: u64) -> Result<(), Error> {
        self.call(|api, instance| unsafe { (api.instance_seed)(instance, seed) })
    }

    /// Lets each later run have a seed of its own, as at first.
    pub fn unseed(&mut self) -> Result<(), Error> {
        self.call(|api, instance| unsafe { (api.instance_unseed)(instance) })
    }

    /// Limits the bytes that the instance may take; 0 is the default.
    pub fn set_memory_limit(&mut self, bytes: u64) -> Result<(), Error> {
        self.call(|api, instance| unsafe { (api.instance_set_memory_limit)(instance, bytes) })
    }

    /// Runs the model in this memory.  `arguments` has each input once, in any order.
    pub fn run(&mut self, arguments: &[Argument<'_>]) -> Result<Results, Error> {
        let loaded = &self.memory.model.loaded;
        loaded.run(loaded.api.run, self.memory.instance, arguments)
    }

    /// Returns a handle with which another thread ends a run.
    pub fn canceller(&self) -> Canceller {
        Canceller { memory: self.memory.clone() }
    }
}

/// Ends runs of an instance, from any thread.
#[derive(Clone)]
pub struct Canceller {
    memory: Arc<Memory>,
}

impl Canceller {
    /// Ends the run in progress, which fails with `Status::Cancelled`.  Fails where there is none.
    pub fn cancel(&self) -> Result<(), Error> {
        let api = self.memory.model.loaded.api;
        check(api, unsafe { (api.instance_cancel)(self.memory.instance) })
    }
}
