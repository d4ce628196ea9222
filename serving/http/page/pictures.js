// Pictures of the next message: chosen, pasted or dropped, made smaller, shown.

import { byId, element, iconButton, notice } from "./elements.js";

const MOST_PIXELS = 1536; // of the longer side; models look at fewer
const SMALL_NBYTES = 300_000;

/** Return a picture of a file as a `data:` URL, not larger than models need. */
async function urlOf(file) {
  const picture = await createImageBitmap(file);
  const scale = Math.min(1, MOST_PIXELS / Math.max(picture.width, picture.height));
  const known = /^image\/(png|jpeg|webp)$/.test(file.type);
  if (scale === 1 && known && file.size <= SMALL_NBYTES) return readUrl(file);
  const canvas = element("canvas");
  canvas.width = Math.max(1, Math.round(picture.width * scale));
  canvas.height = Math.max(1, Math.round(picture.height * scale));
  const brush = canvas.getContext("2d");
  brush.fillStyle = "white"; // JPEG has no transparency
  brush.fillRect(0, 0, canvas.width, canvas.height);
  brush.drawImage(picture, 0, 0, canvas.width, canvas.height);
  picture.close();
  return canvas.toDataURL("image/jpeg", 0.9);
}

function readUrl(file) {
  return new Promise((done, fail) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => fail(reader.error);
    reader.readAsDataURL(file);
  });
}

/** A picture that opens large. */
export function thumbnail(url, label) {
  const onclick = () => {
    byId("picture-large").src = url;
    byId("picture").showModal();
  };
  return element("button", { type: "button", class: "thumbnail", onclick,
                             "aria-label": `${label}: show it large` },
                 element("img", { src: url, alt: label }));
}

export class Pictures {
  constructor(changed) {
    this.urls = [];
    this.allowed = false;
    this.changed = changed;
    this.#listen();
  }

  #listen() {
    const files = byId("files"), main = byId("main");
    byId("attach").onclick = () => files.click();
    files.onchange = async () => {
      await this.add(files.files);
      files.value = "";
    };
    byId("message").addEventListener("paste", (event) => {
      const pasted = event.clipboardData?.files ?? [];
      if (!pasted.length) return;
      event.preventDefault();
      this.add(pasted);
    });
    main.addEventListener("dragover", (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      main.classList.toggle("dropping", this.allowed);
    });
    main.addEventListener("dragleave", (event) => {
      if (!main.contains(event.relatedTarget)) main.classList.remove("dropping");
    });
    main.addEventListener("drop", (event) => {
      main.classList.remove("dropping");
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      this.add(event.dataTransfer.files);
    });
  }

  allow(allowed) {
    this.allowed = allowed;
    byId("attach").hidden = !allowed;
  }

  async add(files) {
    if (!this.allowed) return notice("This model takes no pictures");
    for (const file of [...files]) {
      try {
        this.urls.push(await urlOf(file));
      } catch {
        notice(`${file.name} is not a picture that this browser can read`);
      }
    }
    return this.#show();
  }

  take() {
    const urls = this.urls;
    this.urls = [];
    this.#show();
    return urls;
  }

  #show() {
    const list = byId("pictures");
    list.replaceChildren(...this.urls.map((url, index) => {
      const remove = iconButton("close", `Remove picture ${index + 1}`, () => {
        this.urls.splice(index, 1);
        this.#show();
        byId("message").focus();
      });
      return element("li", {}, thumbnail(url, `Picture ${index + 1}`), remove);
    }));
    list.hidden = !this.urls.length;
    this.changed();
  }
}
