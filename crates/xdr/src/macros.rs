//! Declares wire structures and open enumerations.

/// Defines a public structure with [`Encode`](crate::Encode) and [`Decode`](crate::Decode): its fields in order.
///
/// A variable-length field names its limit after its type:
///
/// ```
/// use bytes::Bytes;
/// use dhow_xdr::{Decode, Encode, xdr_struct};
///
/// xdr_struct! {
///     /// An example.
///     pub struct Example {
///         /// A number.
///         pub number: u32,
///         /// At most 255 bytes.
///         pub name: Bytes[max 255],
///         /// At most 16 numbers.
///         pub list: Vec<u64>[max 16],
///     }
/// }
///
/// let e = Example { number: 7, name: Bytes::from_static(b"x"), list: vec![1] };
/// assert_eq!(Example::from_bytes(e.to_bytes()), Ok(e));
/// ```
#[macro_export]
macro_rules! xdr_struct {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident {
            $( $(#[$fmeta:meta])* pub $field:ident : $ty:ty $([max $max:expr])? ),* $(,)?
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            $( $(#[$fmeta])* pub $field: $ty, )*
        }

        impl $crate::Encode for $name {
            #[allow(unused_variables)]
            fn encode(&self, w: &mut $crate::Writer) {
                $( $crate::Encode::encode(&self.$field, w); )*
            }
        }

        impl $crate::Decode for $name {
            #[allow(unused_variables)]
            fn decode(r: &mut $crate::Reader) -> $crate::Result<Self> {
                Ok(Self { $( $field: $crate::xdr_field!(r, $ty $(, $max)?), )* })
            }
        }
    )*};
}

/// Reads one field for [`xdr_struct!`](crate::xdr_struct).
#[doc(hidden)]
#[macro_export]
macro_rules! xdr_field {
    ($r:ident, $ty:ty) => {
        <$ty as $crate::Decode>::decode($r)?
    };
    ($r:ident, $ty:ty, $max:expr) => {
        <$ty as $crate::DecodeMax>::decode_max($r, $max)?
    };
}

/// Defines an open enumeration: a newtype over `u32` with a constant for each known number, so that a number nobody
/// knows survives decoding and encoding. `Debug` and `Display` print the known name or the number.
///
/// ```
/// use dhow_xdr::{Decode, Encode, xdr_enum};
///
/// xdr_enum! {
///     /// An example.
///     pub enum Color { RED = 0, GREEN = 1 }
/// }
///
/// assert_eq!(format!("{:?} {}", Color::RED, Color(9)), "RED Color(9)");
/// assert_eq!(Color::from_bytes(Color(9).to_bytes()), Ok(Color(9)));
/// assert!(Color(9).name().is_none());
/// ```
#[macro_export]
macro_rules! xdr_enum {
    ($(
        $(#[$meta:meta])*
        pub enum $name:ident {
            $( $(#[$vmeta:meta])* $variant:ident = $value:expr ),* $(,)?
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            $(
                #[doc = concat!("`", stringify!($variant), "` = ", stringify!($value), ".")]
                $(#[$vmeta])*
                pub const $variant: Self = Self($value);
            )*

            /// All known values, in the order of their definition.
            pub const ALL: &'static [Self] = &[$( Self::$variant ),*];

            /// The name of a known value.
            pub const fn name(self) -> Option<&'static str> {
                $( const $variant: u32 = $value; )*
                match self.0 {
                    $( $variant => Some(stringify!($variant)), )*
                    _ => None,
                }
            }
        }

        impl $crate::private::fmt::Debug for $name {
            fn fmt(&self, f: &mut $crate::private::fmt::Formatter<'_>) -> $crate::private::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!(stringify!($name), "({})"), self.0),
                }
            }
        }

        impl $crate::private::fmt::Display for $name {
            fn fmt(&self, f: &mut $crate::private::fmt::Formatter<'_>) -> $crate::private::fmt::Result {
                $crate::private::fmt::Debug::fmt(self, f)
            }
        }

        impl $crate::Encode for $name {
            fn encode(&self, w: &mut $crate::Writer) {
                w.u32(self.0);
            }
        }

        impl $crate::Decode for $name {
            fn decode(r: &mut $crate::Reader) -> $crate::Result<Self> {
                r.u32().map(Self)
            }
        }
    )*};
}
