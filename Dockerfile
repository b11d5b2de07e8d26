# Builds a static binary and runs it without root in an otherwise empty image: docs/deployment.md.
FROM rust:1.95-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends musl-tools && rustup target add "$(uname -m)-unknown-linux-musl"
WORKDIR /src
COPY . .
RUN cargo build --profile dist --locked --target "$(uname -m)-unknown-linux-musl" \
 && cp "target/$(uname -m)-unknown-linux-musl/dist/rallypoint" /rallypoint && mkdir /data

FROM scratch
COPY --from=build /rallypoint /rallypoint
COPY --from=build --chown=65532:65532 /data /data
USER 65532:65532
VOLUME /data
ENTRYPOINT ["/rallypoint"]
CMD ["serve", "--set", "data_dir=/data"]
