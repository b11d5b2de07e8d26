//! The OpenAPI document: made from the handlers, and then said more precisely, with the tables that the handlers read their
//! parameters by. So it cannot say other values than those that are taken.

use serde_json::{Map, Value, json};
use utoipa::openapi::OpenApi;

use super::columns::FIELDS;
use super::order::sort_names;
use super::parameters::VALUE_CHARS_MAX;
use super::test_now::OUTCOMES;
use crate::model::Proof;
use crate::protocols::CARDS;
use crate::store::history::Range;

/// What only requests may leave out by writing null; in answers, absent means unknown.
const NULLABLE: [&str; 1] = ["Announcement"];

pub fn document(made: &OpenApi) -> Value {
    let mut document = serde_json::to_value(made).unwrap_or_default();
    let said = document.pointer("/components/schemas").cloned().unwrap_or_default();
    if let Some(schemas) = document.pointer_mut("/components/schemas").and_then(Value::as_object_mut) {
        for (name, schema) in schemas.iter_mut() {
            flatten(schema, &said);
            schema_of(schema, !NULLABLE.contains(&name.as_str()));
        }
        let server = schemas.get("Server").cloned().unwrap_or_default();
        schemas.extend(events(&server));
        // What is only a part of others.
        schemas.retain(|name, _| name != "Place" && name != "Count");
    }
    for operation in objects(document.pointer_mut("/paths")).flat_map(|path| objects(Some(path))) {
        for parameter in operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
            parameter_of(parameter);
        }
    }
    document
}

fn objects(value: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    value.and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut)
}

/// One object instead of several that are meant together.
fn flatten(schema: &mut Value, all: &Value) {
    let Some(parts) = schema.get("allOf").and_then(Value::as_array).cloned() else { return };
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for part in parts {
        let optional = part.get("oneOf").and_then(Value::as_array).and_then(|either| either.first().cloned());
        let is_optional = optional.is_some();
        let part = optional.unwrap_or(part);
        let named = part.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next());
        let part = named.and_then(|name| all.get(name)).unwrap_or(&part);
        properties.extend(part.get("properties").and_then(Value::as_object).cloned().unwrap_or_default());
        let needed = part.get("required").and_then(Value::as_array).filter(|_| !is_optional);
        required.extend(needed.into_iter().flatten().cloned());
    }
    let description = schema.get("description").cloned().unwrap_or_default();
    *schema = json!({"type": "object", "description": description, "required": required, "properties": properties});
}

/// Says the properties of an object precisely.
fn schema_of(schema: &mut Value, never_null: bool) {
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (name, property) in properties.into_iter().flatten() {
        if never_null {
            without_null(property);
        }
        let more = match name.as_str() {
            "address" if never_null => json!({"example": "203.0.113.5"}),
            "address" => {
                let nothing = json!({"type": "null"});
                let (v4, v6) =
                    (json!({"type": "string", "format": "ipv4"}), json!({"type": "string", "format": "ipv6"}));
                *property = json!({"anyOf": [v4, v6, nothing], "description": property["description"]});
                continue;
            }
            "endpoint" => json!({"pattern": format!("^{}$", endpoint()), "example": "203.0.113.5:20737"}),
            "port" | "observed_port" | "announced_port" => json!({"minimum": 1, "maximum": u16::MAX}),
            "players_current" | "players_max" if never_null => json!({"minimum": 0}),
            "players_current" | "players_max" => json!({"minimum": 0, "maximum": u16::MAX}),
            "protocol" if never_null => json!({"enum": protocols()}),
            "protocol" => {
                json!({"enum": protocols().into_iter().map(Value::from).chain([Value::Null]).collect::<Vec<_>>()})
            }
            "verified_by" => json!({"enum": Proof::ALL.map(Proof::name)}),
            "range" => json!({"enum": Range::ALL.map(Range::name)}),
            "outcome" => json!({"enum": OUTCOMES}),
            "proven_at" | "unanswered_since" | "first_seen" | "last_seen" | "at" | "from" | "to" | "until" => {
                json!({"format": "date-time", "example": "2026-01-10T14:00:00Z"})
            }
            _ => continue,
        };
        extend(property, &more);
    }
}

/// What a client may send as a parameter.
fn parameter_of(parameter: &mut Value) {
    let name = parameter.get("name").and_then(Value::as_str).unwrap_or_default().to_string();
    let is_path = parameter.get("in").is_some_and(|place| place == "path");
    let is_required = parameter.get("required").is_some_and(|required| required == true);
    let Some(schema) = parameter.get_mut("schema") else { return };
    without_null(schema);
    let more = match name.as_str() {
        "game" if is_path || is_required => json!({"minLength": 1, "maxLength": 64, "example": own_game()}),
        "game" => json!({"maxLength": VALUE_CHARS_MAX, "example": own_game()}),
        "address" => json!({"pattern": format!("^{}$", endpoint()), "example": "203.0.113.5:20737"}),
        "protocol" => json!({"enum": protocols()}),
        "verified_by" => json!({"enum": Proof::ALL.map(Proof::name)}),
        "sort" => json!({"enum": sort_names(), "example": "-name"}),
        "range" => json!({"enum": Range::ALL.map(Range::name), "default": Range::Day.name()}),
        "after" => {
            let pattern = format!("^((n-?(0|[1-9][0-9]{{0,17}})~|t[^~]{{0,64}}~)?{})?$", endpoint());
            json!({"pattern": pattern, "example": "203.0.113.5:20737"})
        }
        "fields" => {
            let names = FIELDS.map(|(_, name, _)| name).join("|");
            json!({"pattern": format!("^(({names})(,({names})){{0,6}})?$"), "example": "name,map,players_current"})
        }
        "q" | "map" | "mode" | "version" | "via" | "country" => json!({"maxLength": VALUE_CHARS_MAX}),
        _ => return,
    };
    extend(schema, &more);
}

fn own_game() -> &'static str {
    CARDS.first().map_or("mygame", |card| card.name)
}

fn protocols() -> Vec<&'static str> {
    CARDS.iter().map(|card| card.name).collect()
}

fn extend(schema: &mut Value, more: &Value) {
    if let (Some(schema), Some(more)) = (schema.as_object_mut(), more.as_object()) {
        schema.extend(more.clone());
    }
}

/// Absent means unknown: an answer has no null.
fn without_null(schema: &mut Value) {
    if let Some(types) = schema.get_mut("type").filter(|types| types.is_array()) {
        let named = types.as_array().into_iter().flatten().find(|name| *name != "null").cloned();
        *types = named.unwrap_or_default();
    }
    let either = schema.get("oneOf").and_then(Value::as_array);
    if let Some(only) = either.and_then(|either| either.iter().find(|one| one.get("$ref").is_some())).cloned() {
        *schema = only;
    }
}

/// A regular expression for an address with its port: exactly those that are taken.
fn endpoint() -> String {
    let byte = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
    let port = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])";
    let group = "[0-9a-fA-F]{1,4}";
    let split = (1..=6).map(|left| format!("({group}:){{1,{left}}}(:{group}){{1,{}}}", 7 - left));
    let whole = [format!("({group}:){{7}}{group}"), format!("({group}:){{1,7}}:"), format!(":((:{group}){{1,7}}|:)")];
    let v6: Vec<String> = split.chain(whole).collect();
    format!("(({byte}\\.){{3}}{byte}|\\[({})\\]):{port}", v6.join("|"))
}

/// The data of the events, which no operation returns as a whole.
fn events(server: &Value) -> Map<String, Value> {
    let reference = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    let list =
        |name: &str, description: &str| json!({"type": "array", "items": reference(name), "description": description});
    let serial = json!({"type": "integer", "format": "int64", "minimum": 0, "description": "Increases with every change of the list."});
    let part = |names: &[&str]| {
        let of = |name: &&str| {
            (name.to_string(), server.pointer(&format!("/properties/{name}")).cloned().unwrap_or_default())
        };
        names.iter().map(of).collect::<Map<_, _>>()
    };
    let place = ["address", "port", "endpoint"];
    let mut patch = server.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    for (name, property) in patch.iter_mut().filter(|(name, _)| !place.contains(&name.as_str())) {
        let description = format!("The new `{name}`; null if it is absent now.");
        *property = json!({"oneOf": [property, {"type": "null"}], "description": description});
    }
    let schemas = json!({
        "SnapshotEvent": {
            "type": "object",
            "description": "The data of an event `snapshot`: the list as it is.",
            "required": ["serial", "servers"],
            "properties": {"serial": serial, "servers": list("Server", "All servers that match.")},
        },
        "DeltaEvent": {
            "type": "object",
            "description": "The data of an event `delta`: what changed, to be applied in this order.",
            "required": ["serial"],
            "properties": {
                "serial": serial,
                "removed": list("ServerGone", "Those that left, or no longer match."),
                "added": list("Server", "Those that came, or match now."),
                "changed": list("ServerPatch", "Those that changed."),
            },
        },
        "ServerGone": {
            "type": "object",
            "description": "A server that is no longer on the list.",
            "required": ["protocol", "game", "address", "port", "endpoint"],
            "properties": part(&["protocol", "game", "address", "port", "endpoint"]),
        },
        "ServerPatch": {
            "type": "object",
            "description": "A server with the fields that changed.",
            "required": place,
            "properties": patch,
        },
    });
    schemas.as_object().cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_that_are_taken() {
        let document = document(&super::super::api::routes().1);
        let parameters = document["paths"]["/api/v1/servers"]["get"]["parameters"].as_array().unwrap().clone();
        let values = |name: &str| {
            let found = parameters.iter().find(|parameter| parameter["name"] == name).unwrap();
            found["schema"]["enum"]
                .as_array()
                .unwrap()
                .iter()
                .map(|it| it.as_str().unwrap().to_string())
                .collect::<Vec<_>>()
        };
        for name in ["sort", "verified_by", "protocol"] {
            assert!(!values(name).is_empty());
            for value in values(name) {
                assert!(
                    super::super::filter::Filter::parse(&format!("{name}={value}"), true).is_ok(),
                    "{name}={value}"
                );
            }
        }
        assert!(values("sort").contains(&"-players".to_string()));
        let server = &document["components"]["schemas"]["Server"];
        assert_eq!(server["required"], json!(["protocol", "game", "address", "port", "endpoint"]));
        assert_eq!(server["properties"]["players_max"]["type"], "integer", "never null");
        let diagnosis = &document["components"]["schemas"]["Diagnosis"]["properties"];
        assert_eq!(diagnosis["server"]["$ref"], "#/components/schemas/Server");
        assert!(diagnosis["endpoint"]["pattern"].is_string(), "its parts are one");
        let patch = &document["components"]["schemas"]["ServerPatch"];
        assert_eq!(patch["properties"]["map"]["oneOf"][1]["type"], "null");
        let text = document.to_string();
        assert!(!text.contains("schemas/Place") && !text.contains("schemas/Count"));
    }

    #[test]
    fn every_operation_has_a_name_of_its_own() {
        let document = document(&super::super::api::routes().1);
        let operations =
            document["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap().values());
        let names: Vec<_> = operations.map(|operation| operation["operationId"].as_str().unwrap()).collect();
        assert!(names.iter().all(|name| name.contains(char::is_uppercase)), "{names:?}");
    }
}
