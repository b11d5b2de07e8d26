//! The API's page for people, made from the same OpenAPI document that programs read.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;

use super::samples::samples;
use super::template::{PageError, Template};
use super::{Site, page_of};
use crate::protocols::CARDS;
use crate::registry::view::Rendered;

/// The host in examples where the request names none.
const SOMEWHERE: &str = "localhost:8080";

/// The page's template and what it shows.
pub struct Page {
    template: Template,
    title: String,
    operations: Vec<Operation>,
    schemas: Vec<Schema>,
    error: String,
}

/// One method of one path.
#[derive(Serialize)]
struct Operation {
    method: String,
    path: String,
    summary: String,
    description: String,
    parameters: Vec<Field>,
    /// The fields of the body, where there is one.
    body: Vec<Field>,
    responses: Vec<Answer>,
    /// A `curl` command to try it: options and the path.
    example: Example,
    /// Whether a form can ask for it.
    has_form: bool,
    /// An answer, where it is not long or an image.
    sample: String,
}

/// A parameter, or a field of an object.
#[derive(Serialize)]
struct Field {
    name: String,
    /// `query`, `path` or `header`, of a parameter.
    place: String,
    kind: String,
    required: bool,
    description: String,
    /// The values that it can have, if they are few.
    values: Vec<String>,
    example: String,
}

#[derive(Serialize)]
struct Answer {
    status: String,
    description: String,
    /// The object that the body is, where it is one.
    schema: String,
}

#[derive(Serialize)]
struct Schema {
    name: String,
    description: String,
    fields: Vec<Field>,
}

#[derive(Serialize)]
struct Example {
    options: &'static str,
    path: String,
}

#[derive(Serialize)]
struct Variables<'a> {
    title: &'a str,
    host: &'a str,
    operations: &'a [Operation],
    schemas: &'a [Schema],
    /// What an error looks like.
    error: &'a str,
}

impl Page {
    pub fn new(title: &str, document: &Value) -> Result<Page, PageError> {
        let source = include_str!("../../assets/api.html").to_string();
        let tell = |error: String| PageError(format!("the API's page: {error}"));
        let mut samples = samples();
        Ok(Page {
            error: samples.remove("error").unwrap_or_default(),
            template: Template::new("api.html", source).map_err(|error| tell(error.to_string()))?,
            title: title.into(),
            operations: operations(document, &samples),
            schemas: schemas(document),
        })
    }
}

pub async fn page(State(site): State<Arc<Site>>, headers: HeaderMap) -> Response {
    let pages = site.pages.load();
    let Page { template, title, operations, schemas, error } = &pages.manual;
    // With the request's own host, the examples can be pasted as they are.
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.filter(|host| host.parse::<Authority>().is_ok() && !host.contains('@')).unwrap_or(SOMEWHERE);
    page_of(&Rendered::new(template.render(&Variables { title, host, operations, schemas, error })), &headers)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn at<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    value.pointer(pointer).unwrap_or(&Value::Null)
}

fn operations(document: &Value, samples: &HashMap<&str, String>) -> Vec<Operation> {
    let paths = entries(at(document, "/paths"));
    paths
        .flat_map(|(path, methods)| {
            entries(methods).map(move |(method, said)| {
                let name = at(said, "/operationId").as_str().unwrap_or_default();
                let sample = samples.get(name).cloned().unwrap_or_default();
                Operation { sample, ..operation(document, path, method, said) }
            })
        })
        .collect()
}

fn operation(document: &Value, path: &str, method: &str, said: &Value) -> Operation {
    let parameters: Vec<Field> = items(at(said, "/parameters")).map(parameter).collect();
    let body = at(said, "/requestBody/content/application~1json/schema");
    let answer = |(status, said): (&String, &Value)| Answer {
        status: status.clone(),
        description: text(at(said, "/description")),
        schema: entries(at(said, "/content")).map(|(_, content)| referenced(at(content, "/schema"))).collect(),
    };
    Operation {
        example: example(path, method, &parameters),
        // A form cannot fill in a path, and a browser shows no stream.
        has_form: method == "get" && !path.contains('{') && !path.ends_with("/events"),
        sample: String::new(),
        method: method.to_uppercase(),
        path: path.into(),
        summary: text(at(said, "/summary")),
        description: text(at(said, "/description")),
        parameters,
        body: fields(at(document, &format!("/components/schemas/{}", referenced(body)))),
        responses: entries(at(said, "/responses")).map(answer).collect(),
    }
}

fn parameter(said: &Value) -> Field {
    Field {
        name: text(at(said, "/name")),
        place: text(at(said, "/in")),
        kind: kind(at(said, "/schema")),
        required: at(said, "/required").as_bool().unwrap_or(false),
        description: text(at(said, "/description")),
        values: items(at(said, "/schema/enum")).map(text).collect(),
        example: text(at(said, "/schema/example")),
    }
}

fn schemas(document: &Value) -> Vec<Schema> {
    let schema = |(name, said): (&String, &Value)| Schema {
        name: name.clone(),
        description: text(at(said, "/description")),
        fields: fields(said),
    };
    entries(at(document, "/components/schemas")).map(schema).collect()
}

fn fields(schema: &Value) -> Vec<Field> {
    let required = |name: &str| items(at(schema, "/required")).any(|required| required == name);
    let field = |(name, said): (&String, &Value)| Field {
        name: name.clone(),
        place: String::new(),
        kind: kind(said),
        required: required(name),
        description: text(at(said, "/description")),
        values: items(at(said, "/enum")).filter(|value| !value.is_null()).map(text).collect(),
        example: text(at(said, "/example")),
    };
    entries(at(schema, "/properties")).map(field).collect()
}

/// The last part of a reference: a schema's name.
fn referenced(schema: &Value) -> String {
    at(schema, "/$ref").as_str().and_then(|reference| reference.rsplit('/').next()).unwrap_or_default().to_string()
}

/// A type, for people.
fn kind(schema: &Value) -> String {
    let named = match at(schema, "/type") {
        Value::String(name) => name.clone(),
        // "or null" means that the field may be absent, which is shown elsewhere.
        Value::Array(names) => {
            names.iter().filter_map(Value::as_str).find(|name| *name != "null").unwrap_or_default().into()
        }
        _ => items(at(schema, "/oneOf"))
            .map(kind)
            .find(|kind| !kind.is_empty() && kind != "null")
            .unwrap_or(referenced(schema)),
    };
    match named.as_str() {
        "array" => format!("list of {}", kind(at(schema, "/items"))),
        "boolean" => "true or false".into(),
        "integer" => "whole number".into(),
        "" => "text".into(),
        "string" => "text".into(),
        _ => named,
    }
}

/// An example with valid values.
fn example(path: &str, method: &str, parameters: &[Field]) -> Example {
    let (game, port) = CARDS.first().map_or(("mygame", 7777), |card| (card.name, card.game_port));
    let address = &*format!("203.0.113.5:{port}");
    let filled = path.replace("{game}", game).replace("{address}", address);
    let asks_for = |name: &str| parameters.iter().any(|field| field.name == name && field.place == "query");
    match (method, path) {
        ("post", _) => Example { options: r#"-d '{"game": "mygame", "port": 7777}' "#, path: filled },
        (_, path) if path.ends_with("/events") => Example { options: "-N ", path: filled },
        _ if asks_for("game") && asks_for("address") => {
            Example { options: "", path: format!("{filled}?game={game}&address={address}") }
        }
        _ if asks_for("not_empty") => {
            Example { options: "", path: format!("{filled}?game={game}&not_empty=1&sort=name") }
        }
        _ => Example { options: "", path: filled },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_in_the_document_is_on_the_page() {
        let document = super::super::openapi::document(&super::super::api::routes().1);
        let page = Page::new("Ours & <theirs>", &document).unwrap();
        let Page { template, title, operations, schemas, error } = &page;
        let html = template.try_render(&Variables { title, host: "h:1", operations, schemas, error }).unwrap();
        assert!(html.contains("Ours &amp; &lt;theirs&gt;"));
        for (path, methods) in entries(&document["paths"]) {
            for (method, said) in entries(methods) {
                assert!(html.contains(&format!("{} {path}", method.to_uppercase())), "{method} {path}");
                for said in items(&said["parameters"]) {
                    assert!(html.contains(&format!("<code>{}</code>", said["name"].as_str().unwrap())), "{said}");
                }
            }
        }
        for (name, schema) in entries(&document["components"]["schemas"]) {
            assert!(html.contains(&format!("id=\"{name}\"")), "{name}");
            for (field, _) in entries(&schema["properties"]) {
                assert!(html.contains(&format!("<code>{field}</code>")), "{name} {field}");
            }
        }
        // Contents, forms, and answers that the program made.
        assert_eq!(html.matches("<li><a href=\"#operation-").count(), operations.len());
        assert!(
            html.contains("<form class=\"filters\" action=\"/api/v1/servers\">")
                && html.contains("<option>-players</option>")
        );
        assert!(!html.contains("action=\"/api/v1/events"), "a stream never ends");
        let samples: Vec<_> = operations.iter().filter(|operation| !operation.sample.is_empty()).collect();
        assert_eq!(samples.len(), 5);
        for operation in samples {
            assert!(
                operation.sample.contains("203.0.113.5") || operation.path.ends_with("/games"),
                "{}",
                operation.sample
            );
        }
        assert!(html.contains("curl 'http://h:1/api/v1/servers?game=iceball&amp;not_empty=1"), "{html}");
    }
}
