//! Enough of Rust's lexical rules to look for words in code and not in comments, strings or tests.

/// `text` with everything in comments, strings and character literals blanked; line breaks stay where they are.
#[must_use]
pub fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    while i < chars.len() {
        let end = match at(i) {
            '/' if at(i + 1) == '/' => line_end(&chars, i),
            '/' if at(i + 1) == '*' => block_comment_end(&chars, i),
            '"' => string_end(&chars, i + 1),
            'r' if !is_word(at(i.wrapping_sub(1))) || at(i.wrapping_sub(1)) == 'b' => {
                raw_string_end(&chars, i).unwrap_or(i)
            }
            '\'' => char_end(&chars, i).unwrap_or(i),
            _ => i,
        };
        if end == i {
            out.push(at(i));
            i += 1;
        } else {
            out.extend((i..end).map(|k| if at(k) == '\n' { '\n' } else { ' ' }));
            i = end;
        }
    }
    out
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn line_end(chars: &[char], from: usize) -> usize {
    chars.iter().skip(from).position(|&c| c == '\n').map_or(chars.len(), |n| from + n)
}

/// Block comments nest.
fn block_comment_end(chars: &[char], from: usize) -> usize {
    let (mut depth, mut i) = (0_usize, from);
    loop {
        match (chars.get(i), chars.get(i + 1)) {
            (Some('/'), Some('*')) => (depth, i) = (depth + 1, i + 2),
            (Some('*'), Some('/')) if depth == 1 => return i + 2,
            (Some('*'), Some('/')) => (depth, i) = (depth - 1, i + 2),
            (Some(_), _) => i += 1,
            (None, _) => return chars.len(),
        }
    }
}

/// The index after the quote that ends the string whose first character is at `i`.
fn string_end(chars: &[char], mut i: usize) -> usize {
    loop {
        match chars.get(i) {
            Some('\\') => i += 2,
            Some('"') => return i + 1,
            Some(_) => i += 1,
            None => return chars.len(),
        }
    }
}

/// The index after a raw string that begins with the `r` at `i`, if one does.
fn raw_string_end(chars: &[char], i: usize) -> Option<usize> {
    let hashes = chars.iter().skip(i + 1).take_while(|&&c| c == '#').count();
    let body = i + 1 + hashes;
    if chars.get(body) != Some(&'"') {
        return None;
    }
    (body + 1..chars.len())
        .find(|&k| {
            chars.get(k) == Some(&'"') && chars.iter().skip(k + 1).take(hashes).filter(|&&c| c == '#').count() == hashes
        })
        .map(|k| k + 1 + hashes)
}

/// The index after a character literal at `i`; none where the quote begins a lifetime.
fn char_end(chars: &[char], i: usize) -> Option<usize> {
    if chars.get(i + 1) == Some(&'\\') {
        let close = chars.iter().skip(i + 3).position(|&c| c == '\'')?;
        return Some(i + 3 + close + 1);
    }
    (chars.get(i + 2) == Some(&'\'')).then_some(i + 3)
}

/// `code` (of [`code_only`]) with the bodies of modules and functions under `#[cfg(test)]` blanked.
#[must_use]
pub fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut out = String::with_capacity(code.len());
    let mut rest = code;
    while let Some((before, after)) = rest.split_once(MARK) {
        out.push_str(before);
        let end = item_end(after);
        let (item, tail) = after.split_at(end);
        out.extend(item.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = tail;
    }
    out.push_str(rest);
    out
}

/// Where the item that `code` begins with ends: after its braces, or after a semicolon before any brace.
fn item_end(code: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in code.char_indices() {
        match c {
            ';' if depth == 0 => return at + 1,
            '{' => depth += 1,
            '}' if depth <= 1 => return at + 1,
            '}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

/// The names of modules declared `#[cfg(test)] mod NAME;` in `code`: their files are tests too.
#[must_use]
pub fn test_modules(code: &str) -> Vec<String> {
    code.split("#[cfg(test)]")
        .skip(1)
        .filter_map(|after| {
            let (name, _) = after.trim_start().strip_prefix("mod ")?.split_once(';')?;
            let name = name.trim();
            name.chars().all(is_word).then(|| name.to_owned())
        })
        .collect()
}

/// The lines of `code`, counted from 1, in which `pattern` stands as whole words.
#[must_use]
pub fn lines_with(code: &str, pattern: &str) -> Vec<usize> {
    code.lines().enumerate().filter(|(_, line)| has_word(line, pattern)).map(|(n, _)| n + 1).collect()
}

fn has_word(line: &str, pattern: &str) -> bool {
    line.match_indices(pattern).any(|(at, found)| {
        let before = line.get(..at).and_then(|s| s.chars().next_back());
        let after = line.get(at + found.len()..).and_then(|s| s.chars().next());
        let open_start = !pattern.starts_with(is_word) || !before.is_some_and(is_word);
        let open_end = !pattern.ends_with(is_word) || !after.is_some_and(is_word);
        open_start && open_end
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_strings_and_literals_are_no_code() {
        let text = "a /* x /* unsafe */ unsafe */ b // unsafe\nlet c = \"un\\\"safe unsafe\"; '\"' r#\"unsafe \" \"# d";
        let code = code_only(text);
        assert!(!code.contains("unsafe"), "{code}");
        assert_eq!(code.lines().count(), 2);
        assert!(code.starts_with('a') && code.contains(" b ") && code.ends_with(" d"), "{code}");
    }

    #[test]
    fn lifetimes_do_not_open_literals() {
        let code = code_only("fn f<'a>(x: &'a str) -> &'static str { unsafe { g('b', '\\n', b'\"') } }");
        assert_eq!(lines_with(&code, "unsafe"), [1]);
        assert!(code.ends_with("} }"), "{code}");
    }

    #[test]
    fn test_items_are_left_out() {
        let code =
            "fn a() {}\n#[cfg(test)]\nmod tests { fn b() { now() } }\nfn c() { now() }\n#[cfg(test)]\nmod more;\n";
        assert_eq!(lines_with(&without_tests(code), "now("), [4]);
        assert_eq!(test_modules(code), ["more"]);
    }

    #[test]
    fn words_are_whole() {
        assert_eq!(lines_with("unsafe_code\nis unsafe\nnounsafe", "unsafe"), [2]);
        assert_eq!(lines_with("std::fs::read\nstd::fsx", "std::fs"), [1]);
    }
}
