# Builds a static binary and runs it without root in an otherwise empty image.
#   docker build -t rallypoint .
#   docker run --network host -v rallypoint:/data rallypoint
FROM rust:1.95-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends musl-tools && rustup target add x86_64-unknown-linux-musl
WORKDIR /src
COPY . .
RUN cargo build --profile dist --locked --target x86_64-unknown-linux-musl && mkdir /data

FROM scratch
COPY --from=build /src/target/x86_64-unknown-linux-musl/dist/rallypoint /rallypoint
COPY --from=build --chown=65532:65532 /data /data
USER 65532:65532
VOLUME /data
ENTRYPOINT ["/rallypoint"]
CMD ["serve", "--set", "data_dir=/data"]
