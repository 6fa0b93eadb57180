# kvoracle and kvoraclectl, static, on distroless: no shell, no package manager, not root.
#   docker buildx build --platform linux/amd64,linux/arm64 -t kvoracle .
# The compiler runs on the builder's own architecture and makes the other's programs: nothing is emulated.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS
ARG TARGETARCH
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -o /out/ ./server/cmd/kvoracle ./client/cmd/kvoraclectl

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/ /usr/local/bin/
USER 65532:65532
EXPOSE 7070 7071 7072
ENTRYPOINT ["/usr/local/bin/kvoracle"]
