//! The field `json` of a posted form. Real servers send multipart/form-data, the original list takes URL-encoded forms, too.
//!
//! Written here because the libraries for multipart forms read from a stream, with a runtime.

use std::borrow::Cow;

use url::form_urlencoded;

const FIELD: &str = "json";

pub const EXAMPLE_TYPE: &str = "multipart/form-data; boundary=B";
pub const EXAMPLE: &[u8] = b"--B\r\nContent-Disposition: form-data; name=\"json\"\r\n\r\n{}\r\n--B--\r\n";

/// The text of the field, if there is one.
pub fn json<'a>(content_type: Option<&str>, body: &'a [u8]) -> Option<Cow<'a, str>> {
    let content_type = content_type.unwrap_or_default();
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("multipart/form-data") {
        let field = part(body, boundary(content_type)?)?;
        return Some(String::from_utf8_lossy(field));
    }
    form_urlencoded::parse(body).find(|(name, _)| name == FIELD).map(|(_, value)| value)
}

fn boundary(content_type: &str) -> Option<&str> {
    let mut parameters = content_type.split(';').skip(1).filter_map(|parameter| parameter.trim().split_once('='));
    let (_, value) = parameters.find(|(name, _)| name.eq_ignore_ascii_case("boundary"))?;
    let value = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value);
    // The standard's bounds.
    Some(value).filter(|value| (1..=70).contains(&value.len()))
}

/// The content of the part that has the field.
fn part<'a>(body: &'a [u8], boundary: &str) -> Option<&'a [u8]> {
    let mark = format!("\r\n--{boundary}");
    // The first mark has no line end before it.
    let mut rest = body.strip_prefix(mark.as_bytes().get(2..)?).or_else(|| after(body, mark.as_bytes()))?;
    while let Some(begun) = rest.strip_prefix(b"\r\n") {
        let end = find(begun, mark.as_bytes())?;
        let (whole, next) = begun.split_at_checked(end)?;
        let head_end = find(whole, b"\r\n\r\n")?;
        let (head, content) = whole.split_at_checked(head_end)?;
        if is_field(head) {
            return content.get(4..);
        }
        rest = next.get(mark.len()..)?;
    }
    None
}

/// Whether the head of a part says that it is the field.
fn is_field(head: &[u8]) -> bool {
    let head = String::from_utf8_lossy(head);
    head.split("\r\n").any(|line| {
        let Some((name, value)) = line.split_once(':') else { return false };
        let mut parameters = value.split(';').map(str::trim);
        name.eq_ignore_ascii_case("content-disposition")
            && parameters.next().is_some_and(|kind| kind.eq_ignore_ascii_case("form-data"))
            && parameters.any(|parameter| parameter == "name=\"json\"" || parameter == "name=json")
    })
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

fn after<'a>(bytes: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    bytes.get(find(bytes, wanted)? + wanted.len()..)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn multipart(body: &str) -> Option<String> {
        json(Some(EXAMPLE_TYPE), body.as_bytes()).map(Cow::into_owned)
    }

    #[test]
    fn the_field_is_found_among_others() {
        let part = |name: &str, content: &str| {
            format!("--B\r\nContent-Disposition: form-data; name=\"{name}\"\r\nX: y\r\n\r\n{content}\r\n")
        };
        let one = part("json", "{\"a\":\"--B\"}") + "--B--\r\n";
        assert_eq!(multipart(&one).as_deref(), Some("{\"a\":\"--B\"}"));
        let second = format!("preamble\r\n{}{}--B--", part("other", "x"), part("json", "{}"));
        assert_eq!(multipart(&second).as_deref(), Some("{}"));
        for bad in ["", "--B", "--B--\r\n", "--B\r\n", "--B\r\nno end", &part("other", "x"), &part("json", "x")[..40]] {
            assert_eq!(multipart(bad), None, "{bad}");
        }
        for head in ["X-Other: form-data; name=\"json\"", "Content-Disposition: attachment; name=\"json\""] {
            assert_eq!(multipart(&format!("--B\r\n{head}\r\n\r\n{{}}\r\n--B--\r\n")), None, "{head}");
        }
        for (content_type, found) in [
            ("multipart/form-data; boundary=\"B\"", true),
            ("Multipart/Form-Data; charset=utf-8; Boundary=B", true),
            ("multipart/form-data", false),
            ("multipart/form-data; boundary=", false),
            ("multipart/form-data; boundary=C", false),
        ] {
            assert_eq!(json(Some(content_type), one.as_bytes()).is_some(), found, "{content_type}");
        }
    }

    #[test]
    fn url_encoded_forms_are_read_too() {
        for content_type in [None, Some("application/x-www-form-urlencoded"), Some("text/plain")] {
            assert_eq!(json(content_type, b"a=b&json=%7B%22x%22%3A1%7D+").as_deref(), Some("{\"x\":1} "));
            assert_eq!(json(content_type, b"{}"), None);
        }
    }
}
