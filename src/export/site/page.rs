//! The page of a copy: the master's page, which says that it is a copy, of when, and where the live list is. Links to files of
//! the copy are relative, so that it works in any folder of a web server; all others lead to the live master.

use super::About;
use super::files::{LISTS, WHOLE};

/// As the master's own header, but for what only a header can say.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'";

/// `has` says whether the copy has a file.
pub fn copy(html: &str, about: &About, has: impl Fn(&str) -> bool) -> Result<String, String> {
    let live = escaped(&about.live);
    let html = with_links(html, &live, has);
    let every = about.every.map(|every| format!(" data-every=\"{}\"", every.as_secs())).unwrap_or_default();
    let marks = format!(" data-copy=\"{}\" data-live=\"{live}\"{every}", about.written_at);
    let html = after_name(&html, "<html", &marks)?;
    let html =
        after_tag(&html, "<head", &format!("\n<meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">"))?;
    let place = if html.contains("<main") { "<main" } else { "<body" };
    after_tag(&html, place, &format!("\n{}", notice(about, &live)))
}

/// What visitors read. The script replaces the time by theirs and adds the age.
fn notice(about: &About, live: &str) -> String {
    let at = &about.written_at;
    let words = at.replace('T', " ").replace('Z', " UTC");
    format!(
        "<p id=\"copy\" class=\"copy\">This is a copy from <time datetime=\"{at}\">{words}</time><span></span>; \
         the live list is at <a href=\"{live}/\">{live}</a>.</p>"
    )
}

/// Inserts a text after the name of a tag.
fn after_name(html: &str, tag: &str, text: &str) -> Result<String, String> {
    let (before, after) = html.split_once(tag).ok_or_else(|| without(tag))?;
    Ok(format!("{before}{tag}{text}{after}"))
}

/// Inserts a text after a tag.
fn after_tag(html: &str, tag: &str, text: &str) -> Result<String, String> {
    let (before, after) = html.split_once(tag).ok_or_else(|| without(tag))?;
    let (inside, after) = after.split_once('>').ok_or_else(|| without(tag))?;
    Ok(format!("{before}{tag}{inside}>{text}{after}"))
}

fn without(tag: &str) -> String {
    format!("its page has no {tag}>: a template of your own (web.template) needs it")
}

/// Rewrites what begins with a slash. Quotes in texts are escaped, so that only attributes are found.
fn with_links(html: &str, live: &str, has: impl Fn(&str) -> bool) -> String {
    let mut out = String::with_capacity(html.len() * 5 / 4);
    let mut rest = html;
    while let Some((before, after)) = rest.split_once("=\"/") {
        let Some((value, next)) = after.split_once('"') else { break };
        rest = next;
        let (start, name) = before.rsplit_once(char::is_whitespace).unwrap_or(("", before));
        let link = link(value, live, &has);
        match (name, link) {
            ("href" | "action", Link::Here(link)) | ("src", Link::Here(link)) => {
                out.extend([before, "=\"", &link, "\""]);
            }
            ("href" | "action", Link::Live(link)) => out.extend([before, "=\"", &link, "\""]),
            // A picture that only the live master has. The policy would not load it from there.
            ("src", Link::Live(_)) => out.push_str(start),
            _ => out.extend([before, "=\"/", value, "\""]),
        }
    }
    out.push_str(rest);
    out
}

enum Link {
    Here(String),
    Live(String),
    /// Another host.
    Other,
}

/// Where a link without its slash leads.
fn link(value: &str, live: &str, has: impl Fn(&str) -> bool) -> Link {
    let path = value.split(['?', '#']).next().unwrap_or_default();
    match value {
        "" => Link::Here("./".into()),
        LISTS => Link::Here(WHOLE.into()),
        _ if value.starts_with('/') => Link::Other,
        _ if has(path) => Link::Here(value.into()),
        _ => Link::Live(format!("{live}/{value}")),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn about() -> About {
        let every = Some(Duration::from_secs(10));
        About { live: "https://live.example".into(), written_at: "2026-11-15T12:34:56Z".into(), every }
    }

    #[test]
    fn a_copy_says_so_and_links_to_its_own_files_or_the_live_master() {
        let html = "<!doctype html>\n<html lang=\"en\">\n<head>\n<link rel=\"stylesheet\" href=\"/style.css\">\n\
                    <script src=\"/page.js\" defer></script></head><body class=\"x\"><header><a href=\"/\">A</a> \
                    <a href=\"/doctor?a=b&amp;c=d\">B</a><a href=\"/?sort=name\">C</a></header><main>\
                    <a href=\"/api/v1/servers\">D</a><a href=\"//other.example/\">E</a>\
                    <form action=\"/\" data-x=\"/y\"></form>\n<img alt=\"F\" src=\"/api/v1/history.svg\">\
                    <p>href=&quot;/x&quot; <a href=\"#list\">G</a></p></body></html>";
        let copied = copy(html, &about(), |path| ["style.css", "page.js"].contains(&path)).unwrap();
        for part in [
            "<html data-copy=\"2026-11-15T12:34:56Z\" data-live=\"https://live.example\" data-every=\"10\" lang=\"en\">",
            "<head>\n<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; ",
            "href=\"style.css\"",
            "src=\"page.js\"",
            "<a href=\"./\">A</a>",
            "<a href=\"https://live.example/doctor?a=b&amp;c=d\">B</a>",
            "<a href=\"https://live.example/?sort=name\">C</a>",
            "<a href=\"api/v1/servers.json\">D</a>",
            "<a href=\"//other.example/\">E</a>",
            "<form action=\"./\" data-x=\"/y\">",
            "<img alt=\"F\">",
            "<p>href=&quot;/x&quot; <a href=\"#list\">G</a></p></body></html>",
            "</header><main>\n<p id=\"copy\" class=\"copy\">This is a copy from \
             <time datetime=\"2026-11-15T12:34:56Z\">2026-11-15 12:34:56 UTC</time><span></span>; \
             the live list is at <a href=\"https://live.example/\">https://live.example</a>.</p>",
        ] {
            assert!(copied.contains(part), "{part} is not in {copied}");
        }
    }

    #[test]
    fn other_templates_need_the_usual_tags() {
        let bare = "<html><head></head><body id=\"b\"></body></html>";
        let copied = copy(bare, &About { every: None, ..about() }, |_| false).unwrap();
        assert!(copied.contains("<body id=\"b\">\n<p id=\"copy\"") && !copied.contains("data-every"), "{copied}");
        for (html, tag) in [("", "<html>"), ("<html>", "<head>"), ("<html><head>", "<body>")] {
            assert!(copy(html, &about(), |_| false).unwrap_err().contains(tag), "{html}");
        }
    }
}
