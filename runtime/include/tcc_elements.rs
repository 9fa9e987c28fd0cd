//! Element types: those of tcc.h, and the Rust types whose memory is that of their elements.

/// An element type, with DLPack's code.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

/// A Rust type whose memory is that of elements of `DTYPE`.  A type with fewer bits than a byte stands for
/// all elements of a byte, the first in the lowest bits.
///
/// # Safety
/// All bytes that a model writes for `DTYPE` are valid values of the type.
pub unsafe trait Element: Copy + 'static {
    const DTYPE: DType;
}

macro_rules! elements {
    ($($name:ident $code:literal $bits:literal,)*) => {
        $(unsafe impl Element for $name {
            const DTYPE: DType = DType { code: $code, bits: $bits, lanes: 1 };
        })*
    };
}

macro_rules! bit_patterns {
    ($($name:ident $bytes:ident $code:literal $bits:literal,)*) => {
        $(
            /// The bits of this element type, which Rust lacks.
            #[repr(transparent)]
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct $name(pub $bytes);
            elements! { $name $code $bits, }
        )*
    };
}

/// The names of tcc.h for types that Rust has.
macro_rules! names {
    ($($name:ident $rust:ident,)*) => { $(pub type $name = $rust;)* };
}

names! {
    BOOL bool, I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64, F32 f32, F64 f64,
    STRING String,
}
elements! {
    bool 6 8, i8 0 8, i16 0 16, i32 0 32, i64 0 64, u8 1 8, u16 1 16, u32 1 32, u64 1 64, f32 2 32, f64 2 64,
}
bit_patterns! {
    F16 u16 2 16, BF16 u16 4 16, I2 u8 0 2, I4 u8 0 4, U2 u8 1 2, U4 u8 1 4, F4E2M1 u8 17 4, F8E4M3FN u8 10 8,
    F8E4M3FNUZ u8 11 8, F8E5M2 u8 12 8, F8E5M2FNUZ u8 13 8, F8E8M0 u8 14 8,
}
pub(crate) const STRINGS: DType = DType { code: 3, bits: 128, lanes: 1 };

/// Returns the bytes of an array.
pub(crate) fn byte_count(dtype: DType, shape: &[i64]) -> Option<usize> {
    let mut count: usize = 1;
    for &size in shape {
        if size < 0 {
            return None;
        }
        count = count.checked_mul(size as usize)?;
    }
    Some(count.checked_mul(dtype.bits as usize)?.checked_add(7)? / 8)
}
