//! Tables of keys. A row states everything about one key: help, field, type, default, allowed values, and the effect of
//! a reload. The struct, its reader, the comparison of a reload and the documents all come from the row.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use crate::read::{Section, show_size};

/// Effect of a reload on a key whose value differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// The running daemon applies the new value.
    Live,
    /// The running daemon applies the new value, up to that of the start, for which its table was allocated.
    UpToStart,
    /// The daemon refuses the file.
    Restart,
    /// As [`Self::Restart`], unless both files have the default, which follows other keys.
    Derived,
}

impl Class {
    /// Returns true if a running daemon can apply another value.
    pub(crate) const fn is_live(self) -> bool {
        matches!(self, Self::Live | Self::UpToStart)
    }
}

/// Row of a table of keys, with the value of one configuration.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// Path of the key, such as `log.level`.
    pub(crate) path: &'static str,
    /// Description of the value.
    pub(crate) help: &'static str,
    /// Range, list or form of the values; empty if the help has it.
    pub(crate) allowed: String,
    /// Effect of a reload.
    pub(crate) class: Class,
    /// Value as a reload shows it to people.
    pub(crate) shown: String,
    /// Value as the file has it; empty for a key without a value.
    pub(crate) toml: String,
    /// Value for the reference in place of the default, or empty; behind `# `, the reference comments the key out.
    pub(crate) example: &'static str,
}

impl Row {
    /// Returns the row of a key with a value.
    pub(crate) fn new<K: Kind>(texts: [&'static str; 3], kind: &K, value: &K::Value, class: Class) -> Self {
        let [path, help, example] = texts;
        let (allowed, shown, toml) = (kind.allowed(), kind.shown(value), kind.toml(value));
        Self { path, help, allowed, class, shown, toml, example }
    }

    /// Returns the name of the key in its table.
    pub(crate) fn key(&self) -> &'static str {
        self.path.rsplit('.').next().unwrap_or_default()
    }
}

/// Struct of a table of keys, as `keys!` declares it.
pub(crate) trait Keys {
    /// Description: the word table, the head in backticks, a colon, and the content.
    const ABOUT: &'static str;

    /// Returns a row for each key.
    fn rows(&self) -> Vec<Row>;
}

/// Kind of a key's values: it reads them from the file, and formats them.
pub(crate) trait Kind {
    /// Type of the values.
    type Value;

    /// Reads the value of a key. `None` if the file has none, or a wrong one, which this reports.
    fn read(&self, section: &mut Section<'_>, key: &'static str) -> Option<Self::Value>;

    /// Describes the values; empty if nothing is to be said.
    fn allowed(&self) -> String;

    /// Formats a value for people.
    fn shown(&self, value: &Self::Value) -> String;

    /// Formats a value as the file has it.
    fn toml(&self, value: &Self::Value) -> String {
        self.shown(value)
    }
}

/// Describes a range by its ends.
fn span<T>(range: &RangeInclusive<T>, show: impl Fn(&T) -> String) -> String {
    format!("{} to {}", show(range.start()), show(range.end()))
}

/// Integer within a range; the text says what it is.
pub(crate) struct Number<T>(pub(crate) RangeInclusive<T>, pub(crate) &'static str);

impl<T: Copy + PartialOrd + Display + TryFrom<i128>> Kind for Number<T> {
    type Value = T;

    fn read(&self, section: &mut Section<'_>, key: &'static str) -> Option<T> {
        section.number(key, self.0.clone(), self.1)
    }

    fn allowed(&self) -> String {
        span(&self.0, T::to_string)
    }

    fn shown(&self, value: &T) -> String {
        value.to_string()
    }
}

/// As [`Number`], with 0 for none, which a reload shows as `default`.
pub(crate) struct NumberOrNone<T>(pub(crate) RangeInclusive<T>, pub(crate) &'static str);

impl<T: Copy + Default + PartialOrd + Display + TryFrom<i128>> Kind for NumberOrNone<T> {
    type Value = Option<T>;

    fn read(&self, section: &mut Section<'_>, key: &'static str) -> Option<Option<T>> {
        section.number(key, self.0.clone(), self.1).map(|number| Some(number).filter(|n| *n != T::default()))
    }

    fn allowed(&self) -> String {
        span(&self.0, T::to_string)
    }

    fn shown(&self, value: &Option<T>) -> String {
        value.map_or_else(|| "default".to_owned(), |number| number.to_string())
    }

    fn toml(&self, value: &Option<T>) -> String {
        value.unwrap_or_default().to_string()
    }
}

/// Size in bytes within a range; the text says of what.
pub(crate) struct Size<T>(pub(crate) RangeInclusive<T>, pub(crate) &'static str);

impl<T: Copy + PartialOrd + TryFrom<u64> + Into<u64>> Kind for Size<T> {
    type Value = T;

    fn read(&self, section: &mut Section<'_>, key: &'static str) -> Option<T> {
        section.size(key, self.0.clone(), self.1)
    }

    fn allowed(&self) -> String {
        span(&self.0, |bytes| show_size((*bytes).into()))
    }

    fn shown(&self, value: &T) -> String {
        let bytes: u64 = (*value).into();
        bytes.to_string()
    }

    fn toml(&self, value: &T) -> String {
        let size = show_size((*value).into());
        if size.ends_with(char::is_alphabetic) { format!("{size:?}") } else { size }
    }
}

/// The words `true` and `false`.
pub(crate) struct Flag;

impl Kind for Flag {
    type Value = bool;

    fn read(&self, section: &mut Section<'_>, key: &'static str) -> Option<bool> {
        section.flag(key)
    }

    fn allowed(&self) -> String {
        String::new()
    }

    fn shown(&self, value: &bool) -> String {
        value.to_string()
    }
}

/// One of a list of words, with advice for other ones.
pub(crate) struct Choice<'a, T>(pub(crate) &'a [(&'a str, T)], pub(crate) &'static str);

impl<T: Copy + PartialEq> Kind for Choice<'_, T> {
    type Value = T;

    fn read(&self, section: &mut Section<'_>, key: &'static str) -> Option<T> {
        section.choice(key, self.0, self.1)
    }

    fn allowed(&self) -> String {
        let words: Vec<String> = self.0.iter().map(|(word, _)| format!("{word:?}")).collect();
        words.join(", ")
    }

    fn shown(&self, value: &T) -> String {
        self.0
            .iter()
            .find(|(_, choice)| choice == value)
            .map_or_else(String::new, |(word, _)| (*word).to_owned())
    }

    fn toml(&self, value: &T) -> String {
        format!("{:?}", self.shown(value))
    }
}

/// Text of a form that is described, with the functions that parse and format it.
pub(crate) struct Text<T>(
    pub(crate) &'static str,
    pub(crate) fn(&str) -> Result<T, String>,
    pub(crate) fn(&T) -> String,
);

impl<T: Display> Text<T> {
    /// Returns the kind of texts that are shown as their type displays them.
    pub(crate) const fn new(what: &'static str, parse: fn(&str) -> Result<T, String>) -> Self {
        Self(what, parse, T::to_string)
    }
}

impl Text<PathBuf> {
    /// Returns the kind of paths.
    pub(crate) const fn path(what: &'static str, parse: fn(&str) -> Result<PathBuf, String>) -> Self {
        Self(what, parse, |path| path.display().to_string())
    }
}

impl<T> Kind for Text<T> {
    type Value = T;

    fn read(&self, section: &mut Section<'_>, key: &'static str) -> Option<T> {
        section.parsed(key, self.0, self.1)
    }

    fn allowed(&self) -> String {
        self.0.to_owned()
    }

    fn shown(&self, value: &T) -> String {
        (self.2)(value)
    }

    fn toml(&self, value: &T) -> String {
        format!("{:?}", self.shown(value))
    }
}

/// File mode of a socket, one of a list: `"0660"`, or the TOML number `0o660`.
pub(crate) struct Mode(pub(crate) &'static [u32]);

impl Kind for Mode {
    type Value = u32;

    fn read(&self, section: &mut Section<'_>, key: &'static str) -> Option<u32> {
        let value = section.value(key)?;
        let mode = match (value.value.as_str(), value.value.as_integer()) {
            (Some(text), _) if !text.starts_with('+') => u32::from_str_radix(text, 8).ok(),
            (_, Some(number)) if number.radix() == 8 => u32::from_str_radix(number.as_str(), 8).ok(),
            _ => None,
        };
        let mode = mode.filter(|mode| self.0.contains(mode));
        if mode.is_none() {
            let help = "0600 is for the daemon's own user, 0660 for the group of the socket too";
            let message = "this is not a mode for the socket";
            section.report().not_allowed(&value.place, message, self.allowed(), help);
        }
        mode
    }

    fn allowed(&self) -> String {
        self.0.iter().map(|mode| self.toml(mode)).collect::<Vec<_>>().join(", ")
    }

    fn shown(&self, value: &u32) -> String {
        format!("{value:04o}")
    }

    fn toml(&self, value: &u32) -> String {
        format!("{:?}", self.shown(value))
    }
}

/// Values that a function of its own reads; with the function that formats them, and their description.
pub(crate) struct By<T>(
    pub(crate) fn(&mut Section<'_>) -> Option<T>,
    pub(crate) fn(&T) -> String,
    pub(crate) &'static str,
);

impl<T> Kind for By<T> {
    type Value = T;

    fn read(&self, section: &mut Section<'_>, _: &'static str) -> Option<T> {
        (self.0)(section)
    }

    fn allowed(&self) -> String {
        self.2.to_owned()
    }

    fn shown(&self, value: &T) -> String {
        (self.1)(value)
    }
}

/// Values of another kind, of a key that the table must have; with the advice for a table without it. If the advice is
/// empty, the description of the values is.
pub(crate) struct Required<K>(pub(crate) K, pub(crate) &'static str);

impl<K: Kind> Kind for Required<K> {
    type Value = K::Value;

    fn read(&self, section: &mut Section<'_>, key: &'static str) -> Option<K::Value> {
        if section.value(key).is_some() {
            return self.0.read(section, key);
        }
        match self.1 {
            "" => section.missing(key, &format!("write {}", self.0.allowed())),
            advice => section.missing(key, advice),
        }
        None
    }

    fn allowed(&self) -> String {
        self.0.allowed()
    }

    fn shown(&self, value: &K::Value) -> String {
        self.0.shown(value)
    }

    /// Returns nothing: the only value known without a file stands for a mistake.
    fn toml(&self, _: &K::Value) -> String {
        String::new()
    }
}

/// Values of another kind, or none without the key.
pub(crate) struct Optional<K>(pub(crate) K);

impl<K: Kind> Kind for Optional<K> {
    type Value = Option<K::Value>;

    fn read(&self, section: &mut Section<'_>, key: &'static str) -> Option<Option<K::Value>> {
        self.0.read(section, key).map(Some)
    }

    fn allowed(&self) -> String {
        self.0.allowed()
    }

    fn shown(&self, value: &Option<K::Value>) -> String {
        value.as_ref().map_or_else(|| "default".to_owned(), |value| self.0.shown(value))
    }

    fn toml(&self, value: &Option<K::Value>) -> String {
        value.as_ref().map_or_else(String::new, |value| self.0.toml(value))
    }
}

/// Returns the rows whose values differ, with their old and new values.
pub(crate) fn differing(old: Vec<Row>, new: Vec<Row>) -> impl Iterator<Item = (Row, Row)> {
    let pairs = old.into_iter().zip(new);
    pairs.filter(|(old, new)| (&old.shown, &old.toml) != (&new.shown, &new.toml))
}

/// Returns rows with others inserted after that of a key.
pub(crate) fn after(key: &str, inserted: Vec<Row>, mut rows: Vec<Row>) -> Vec<Row> {
    let at = rows.iter().take_while(|row| row.key() != key).count().saturating_add(1);
    rows.splice(at..at, inserted);
    rows
}

/// Declares a table of keys. Each row is
///
/// ```text
/// /// Help.
/// field [as "key"]: Type = default, kind, Class [, "example for the reference"];
/// ```
///
/// The kind is a [`Kind`], the class one of [`Class`]. The default may use the fields above it, the section, and the
/// arguments that the head names. `with` declares fields that have tables of their own. The second form reads keys into
/// a struct of another crate, whose value before is the default; `beside` names the fields that are not keys of this
/// table. The third form has a function for each key instead of a field, for keys that are read one by one.
macro_rules! keys {
    (
        $(#[doc = $about:literal])+
        $(#[derive($($derive:ident),+)])?
        pub struct $name:ident in $table:ident($section:ident $(, $arg:ident: $arg_type:ty)*) {
            $(
                $(#[doc = $help:literal])+
                $field:ident $(as $key:literal)?: $type:ty = $default:expr, $kind:expr, $class:ident
                    $(, $example:literal)?;
            )+
        }
        $(with { $($(#[doc = $part_help:literal])+ $part:ident: $part_type:ty = $part_value:expr;)+ })?
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq $($(, $derive)+)?)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[doc = $help])+ pub $field: $type,)+
            $($($(#[doc = $part_help])+ pub $part: $part_type,)+)?
        }

        impl $name {
            /// Reads the keys, and fills in the defaults.
            pub(crate) fn read($section: &mut crate::read::Section<'_> $(, $arg: $arg_type)*) -> Self {
                $(let $field: $type = match $crate::keys::Kind::read(&$kind, $section, keys!(@key $field $($key)?)) {
                    Some(value) => value,
                    None => $default,
                };)+
                $($(let $part = $part_value;)+)?
                Self { $($field,)+ $($($part,)+)? }
            }
        }

        impl $crate::keys::Keys for $name {
            const ABOUT: &'static str = concat!($($about),+);

            fn rows(&self) -> Vec<$crate::keys::Row> {
                vec![$(keys!(
                    @row $table, $field $($key)?, [$($help)+], &$kind, &self.$field, $class, [$($example)?]
                )),+]
            }
        }
    };
    (
        $(#[doc = $about:literal])+
        struct $name:ident for $target:ident in $table:ident {
            $(
                $(#[doc = $help:literal])+
                $field:ident $(as $key:literal)?: $kind:expr, $class:ident $(, $example:literal)?;
            )+
        }
        beside { $($beside:tt)+ }
    ) => {
        $(#[doc = $about])+
        pub(crate) struct $name;

        impl $name {
            /// Reads the keys into `values`.
            pub(crate) fn read(section: &mut crate::read::Section<'_>, values: &mut $target) {
                $(if let Some(value) = $crate::keys::Kind::read(&$kind, section, keys!(@key $field $($key)?)) {
                    values.$field = value;
                })+
            }

            /// Returns a row for each key.
            pub(crate) fn rows(values: &$target) -> Vec<$crate::keys::Row> {
                let $target { $($field,)+ $($beside)+ } = values;
                vec![$(keys!(
                    @row $table, $field $($key)?, [$($help)+], &$kind, $field, $class, [$($example)?]
                )),+]
            }
        }
    };
    (
        $(#[doc = $about:literal])+
        struct $name:ident of $table:ident {
            $(
                $(#[doc = $help:literal])+
                $field:ident: $type:ty = $default:expr, $kind:expr, $class:ident $(, $example:literal)?;
            )+
        }
    ) => {
        $(#[doc = $about])+
        pub(crate) struct $name;

        impl $name {
            $(
                $(#[doc = $help])+
                fn $field(section: &mut crate::read::Section<'_>) -> $type {
                    match $crate::keys::Kind::read(&$kind, section, stringify!($field)) {
                        Some(value) => value,
                        None => $default,
                    }
                }
            )+

            /// Returns a row for each key, with its default.
            pub(crate) fn rows() -> Vec<$crate::keys::Row> {
                vec![$({
                    let value: $type = $default;
                    keys!(@row $table, $field, [$($help)+], &$kind, &value, $class, [$($example)?])
                }),+]
            }
        }
    };
    (@key $field:ident $key:literal) => { $key };
    (@key $field:ident) => { stringify!($field) };
    (
        @row $table:ident, $field:ident $($key:literal)?, [$($help:literal)+], $kind:expr, $value:expr, $class:ident,
        [$($example:literal)?]
    ) => {
        $crate::keys::Row::new(
            [concat!(stringify!($table), ".", keys!(@key $field $($key)?)), concat!($($help),+), concat!($($example)?)],
            $kind,
            $value,
            $crate::keys::Class::$class,
        )
    };
}

pub(crate) use keys;
